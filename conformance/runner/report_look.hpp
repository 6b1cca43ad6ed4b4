// SPDX-License-Identifier: Apache-2.0
// Style and script of report.html. A status has its word beside its colour. Read next:
// report_html.cpp.
#ifndef KVSPAN_CONFORMANCE_RUNNER_REPORT_LOOK_H
#define KVSPAN_CONFORMANCE_RUNNER_REPORT_LOOK_H

#include <string_view>

namespace kvspan::runner {

inline constexpr std::string_view kPageStyle = R"css(
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }
body { max-width: 75rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { margin-top: 2rem; border-bottom: 1px solid #8888; }
h3 { font-size: 1rem; margin: 0; } h3 small { font-weight: normal; opacity: .7; }
#verdict { font-size: 1.15rem; font-weight: 600; padding: .6rem .8rem; border-left: .4rem solid; }
#verdict.good { border-color: #2a7; } #verdict.bad { border-color: #d33; }
table { border-collapse: collapse; margin: .5rem 0; }
caption { text-align: left; font-weight: 600; }
th, td { border: 1px solid #8886; padding: .15rem .5rem; text-align: left; vertical-align: top; }
.matrices { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: start; }
.level-native { background: #2a73; } .level-converts { background: #fa04; }
.level-unsupported { opacity: .55; }
.status { border-radius: .3rem; padding: 0 .35rem; border: 1px solid #8888; white-space: nowrap; }
.s-pass { background: #2a73; } .s-fail, .s-crash, .s-hang, .s-unexpected_pass { background: #d335; }
.s-warn, .s-waived, .s-inconclusive { background: #fa04; }
.s-blocked, .s-not_run, .s-suite_error { background: #84f4; }
article { border: 1px solid #8886; border-left: .3rem solid #d33; padding: .6rem; margin: .8rem 0; }
pre { margin: .2rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
pre.expected { border-left: .25rem solid #2a7; padding-left: .5rem; }
pre.actual { border-left: .25rem solid #d33; padding-left: .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 .8rem; } dd { margin: 0; }
#filters { position: sticky; top: 0; background: Canvas; padding: .4rem 0; }
.row.away { display: none; }
)css";

inline constexpr std::string_view kPageScript = R"js(
(function () {
  var form = document.getElementById("filters");
  var status = document.getElementById("by-status");
  var text = document.getElementById("by-text");
  function filter() {
    var wanted = text.value.toLowerCase();
    document.querySelectorAll(".row").forEach(function (row) {
      var words = ((row.dataset.case || "") + " " + row.dataset.rules).toLowerCase();
      var stays = (status.value === "" || row.dataset.status === status.value) &&
                  words.indexOf(wanted) >= 0;
      row.classList.toggle("away", !stays);
    });
  }
  form.hidden = false;
  form.addEventListener("submit", function (event) { event.preventDefault(); });
  status.addEventListener("change", filter);
  text.addEventListener("input", filter);
})();
)js";

}  // namespace kvspan::runner

#endif
