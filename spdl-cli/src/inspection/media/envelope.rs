//! The outline of a waveform.

/// Minimum and maximum of the samples of all channels, in columns of equal duration.
///
/// The number of samples need not be known before: when the columns are full, pairs of them are
/// merged.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    columns: Vec<(f32, f32)>,
    /// Number of frames in a column.
    width: usize,
    /// Number of frames in the last column.
    filled: usize,
    most: usize,
}

impl Envelope {
    /// An outline of `most` columns at most, at least 1.
    pub(crate) fn new(most: usize) -> Self {
        // Twice as many columns are recorded, so that at least `most` / 2 columns remain after a
        // merge.
        Envelope { columns: Vec::new(), width: 1, filled: 0, most: most.max(1) }
    }

    /// Adds frames. All channels have the same number of samples.
    pub(crate) fn add(&mut self, channels: &[Vec<f32>]) {
        let frames = channels.first().map_or(0, Vec::len);
        for frame in 0..frames {
            let samples = channels.iter().filter_map(|channel| channel.get(frame).copied());
            let (low, high) = samples
                .fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), it| {
                    (low.min(it), high.max(it))
                });
            self.push(low, high);
        }
    }

    fn push(&mut self, low: f32, high: f32) {
        if self.columns.is_empty() || self.filled == self.width {
            if self.columns.len() == 2 * self.most {
                self.merge();
            }
            self.columns.push((low, high));
            self.filled = 1;
            return;
        }
        if let Some(last) = self.columns.last_mut() {
            *last = (last.0.min(low), last.1.max(high));
        }
        self.filled += 1;
    }

    /// Merges pairs of columns. The number of columns is even, and all columns are full.
    fn merge(&mut self) {
        self.columns = self.columns.chunks(2).map(of_both).collect();
        self.width *= 2;
        self.filled = self.width;
    }

    /// The minimum and maximum of each column, in order of time: up to twice the number of columns.
    pub(crate) fn columns(&self) -> &[(f32, f32)] {
        &self.columns
    }
}

fn of_both(columns: &[(f32, f32)]) -> (f32, f32) {
    columns.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), column| {
        (low.min(column.0), high.max(column.1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_hold_the_extremes_of_all_samples() {
        let mut envelope = Envelope::new(2);
        envelope.add(&[vec![0.0, 0.5, -1.0], vec![0.25, 0.0, 0.0]]);
        assert_eq!(envelope.columns(), [(0.0, 0.25), (0.0, 0.5), (-1.0, 0.0)]);
        let samples: Vec<f32> = (0..10).map(|number| number as f32 / 10.0).collect();
        let mut envelope = Envelope::new(2);
        envelope.add(&[samples[..3].to_vec()]);
        envelope.add(&[samples[3..].to_vec()]);
        // Ten frames in columns of four.
        assert_eq!(envelope.columns(), [(0.0, 0.3), (0.4, 0.7), (0.8, 0.9)]);
        assert!(Envelope::new(0).columns().is_empty());
    }
}
