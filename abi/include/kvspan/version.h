/* SPDX-License-Identifier: Apache-2.0 */
/* The ABI's version and the hash that pairs host and plugin while the major is 0.
 * Not here: the release history (CHANGELOG.md) and negotiation (entry.h).
 * Read next: types.h. */
#ifndef KVSPAN_VERSION_H
#define KVSPAN_VERSION_H

#define KVSPAN_ABI_MAJOR 0u
#define KVSPAN_ABI_MINOR 1u
#define KVSPAN_RELEASE_PATCH 0u

/* First eight bytes, big end first, of the SHA-256 of the layout manifest (abi/frozen/0.1.json),
 * which is read from the compiled headers, not from their text: a comment changes nothing, a moved
 * field changes it. While the major is 0 host and plugin must carry the same value. The manifest
 * gate recomputes it. */
#define KVSPAN_HEADER_HASH 0xa9bd4a1345e7c212ull

#endif
