// SPDX-License-Identifier: Apache-2.0
// What the calls of a Session do, where memory suffices and the engine's own code throws nothing.
// calls.cpp makes values of what comes out of them otherwise. A function may throw wherever it has
// changed nothing that it would have to take back; inside a step, anywhere: the step is over then.
// Private to core/session. Read next: session.hpp (what each promises).
#pragma once

#include "kvspan/core/session/session.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace kvspan::unguarded {

[[nodiscard]] Result<std::unique_ptr<SessionState>> open(const Backend& backend,
                                                         const SessionOptions& options);

// ---- session.cpp
[[nodiscard]] Result<SequenceId> add_sequence(SessionState& state);
[[nodiscard]] Result<void> remove_sequence(SessionState& state, SequenceId sequence);
[[nodiscard]] Result<void> truncate(SessionState& state, SequenceId sequence, std::uint64_t tokens);

// ---- load.cpp
[[nodiscard]] Result<void> load(SessionState& state,
                                SequenceId sequence,
                                std::uint64_t tokens,
                                const PageSource& source);

// ---- place.cpp, observe.cpp
[[nodiscard]] Result<void> enter(SessionState& state, Phase phase);
[[nodiscard]] Result<void> place(SessionState& state, const Placement& placement);
[[nodiscard]] Result<Decision> observe(SessionState& state, const StepObservation& seen);

// ---- step.cpp, layer_step.cpp, attend.cpp
[[nodiscard]] Result<void> begin_step(SessionState& state,
                                      std::span<const StepRows> rows,
                                      Phase phase);
[[nodiscard]] Result<void> write(SessionState& state, std::uint32_t layer, const WriteRows& rows);
[[nodiscard]] Result<kvspan_point_t> attend(SessionState& state,
                                            std::uint32_t layer,
                                            const AttendRows& rows);
[[nodiscard]] Result<void> wait(SessionState& state, const kvspan_point_t& point);
[[nodiscard]] Result<void> commit(SessionState& state, std::span<const std::uint32_t> accepted);

}  // namespace kvspan::unguarded
