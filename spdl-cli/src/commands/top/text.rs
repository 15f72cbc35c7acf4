//! One sample as plain text.

use super::sample::{COLUMNS, TEXT_COLUMNS, TopSample};
use crate::ui::format::wrap;
use crate::ui::table::Table;

const WIDTH: usize = 100;

/// The text of `--once`.
pub(crate) fn text(sample: &TopSample) -> String {
    let mut stages = Table::new(&COLUMNS, TEXT_COLUMNS);
    for row in sample.stages() {
        stages.add(row);
    }
    let facts: String =
        sample.facts().iter().map(|(name, value)| format!("{name:<11}{value}\n")).collect();
    let diagnosis = wrap(&sample.diagnosis(), WIDTH);
    format!("{}\n{diagnosis}\n\n{facts}\n{}\n", sample.title(), stages.draw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::sample::tests::line;

    #[test]
    fn a_sample_is_a_few_aligned_lines() {
        let expected = "\
process 4321, pipeline 3, running for 72.0 s
The CPUs limit the throughput. A second sentence.

rate       8.000 items/s (512.0 samples/s)
readiness  25 %; the consumer waits for 50 % of the time
memory     500.0 MB of 2.0 GB
CPUs       1.50 of 4
dropped    7 samples

stage       kind  concurrency  items/s  busy      p50      p99     queue  filled
decode\\x1b  fill            4    500.0  75 %  2.00 ms  4.50 ms  0.2 of 2    25 %
";
        assert_eq!(text(&TopSample::parse(&line(8.0)).unwrap()), expected);
    }
}
