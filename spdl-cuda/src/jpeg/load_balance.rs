//! Which engine decodes which image.

use super::header::{JpegCoding, JpegColor, JpegHeader, Subsampling};

/// What decodes a JPEG.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JpegBackend {
    /// The engines for it that some devices have.
    Hardware,
    /// The CPU undoes the Huffman codes, the multiprocessors do the rest.
    Hybrid,
    /// The CPU alone, by another decoder than this crate's.
    Host,
}

/// The paths that take an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackendSet {
    pub(crate) hardware: bool,
    pub(crate) hybrid: bool,
}

impl BackendSet {
    /// By what the header says. The library has the last word on the engines.
    pub(crate) fn of(header: &JpegHeader) -> BackendSet {
        let bits = header.precision == 8;
        // Others would be taken for YCbCr.
        let plain = matches!(header.color, JpegColor::Grey | JpegColor::YCbCr);
        // An image that was cut is decoded where it is known how far it goes, alone.
        let hardware = bits
            && header.coding == JpegCoding::Baseline
            && header.is_interleaved
            && header.has_end
            && plain
            && !matches!(header.subsampling, Subsampling::S411 | Subsampling::Other);
        BackendSet { hardware, hybrid: bits && plain }
    }
}

/// A path that is measured has one image at least of so many that it could have had: otherwise
/// nobody would see that it has become faster.
const EXPLORE_EVERY: u32 = 50;
/// How much a new measurement counts beside all before it.
const NEWS: f64 = 0.25;
/// How much of a large batch is remembered after each that is smaller.
const FADING: f64 = 0.99;
/// The paths that share images, by their numbers here.
const SHARING: [JpegBackend; 2] = [JpegBackend::Hardware, JpegBackend::Hybrid];

/// How fast each path is, by what was measured, and what follows for the images to come.
///
/// What a path has to do beyond the other is carried from batch to batch, so that shares come out
/// right where batches are small, too.
#[derive(Clone, Debug)]
pub(crate) struct LoadBalancer {
    /// In bytes of pixels a second.
    rates: [f64; 2],
    is_measured: [bool; 2],
    /// For how many seconds each has work.
    busy: [f64; 2],
    /// How many images each could have had, and has not, since its last one.
    passed_over: [u32; 2],
    /// The largest batch of late, in bytes of pixels.
    largest: f64,
}

impl LoadBalancer {
    /// At first two thirds to the engines, which is near what others have found to be a good share
    /// (DALI's `hw_decoder_load` is 0.65).
    pub(crate) fn new() -> LoadBalancer {
        LoadBalancer {
            rates: [2e9, 1e9],
            is_measured: [false; 2],
            busy: [0.0; 2],
            passed_over: [0; 2],
            largest: 0.0,
        }
    }

    /// Learns that a path took so many seconds for images of so many bytes of pixels.
    pub(crate) fn learn(&mut self, path: JpegBackend, bytes: u64, seconds: f64) {
        let Some(at) = SHARING.iter().position(|sharing| *sharing == path) else { return };
        let rate = bytes as f64 / seconds;
        if !(rate.is_finite() && rate > 0.0) {
            return;
        }
        let news = if self.is_measured[at] { NEWS } else { 1.0 };
        // Of times, not of rates: one that is much too short must not count for more than the others.
        self.rates[at] = 1.0 / ((1.0 - news) / self.rates[at] + news / rate);
        self.is_measured[at] = true;
    }

    /// The share of each path, engines first, where images could go either way.
    pub(crate) fn shares(&self) -> [f64; 2] {
        self.rates.map(|rate| rate / (self.rates[0] + self.rates[1]))
    }

    /// A path for each image, given by its bytes of pixels: the largest first, each where it is done
    /// the soonest. What neither path of the device takes is for the host.
    pub(crate) fn assign(&mut self, images: &[(u64, BackendSet)]) -> Vec<JpegBackend> {
        let mut order: Vec<usize> = (0..images.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(images[at].0));
        let mut paths = vec![JpegBackend::Host; images.len()];
        let mut explored = [None; 2];
        for (path, explored) in explored.iter_mut().enumerate() {
            if self.passed_over[path] >= EXPLORE_EVERY {
                // The smallest image that can go either way is enough to see how fast it is.
                let can =
                    |at: &&usize| images[**at].1 == BackendSet { hardware: true, hybrid: true };
                *explored = order.iter().rev().find(can).copied();
            }
        }
        for at in order {
            let (bytes, ways) = images[at];
            let done = |path: usize| self.busy[path] + bytes as f64 / self.rates[path];
            let path = match (ways.hardware, ways.hybrid) {
                (true, true) => explored
                    .iter()
                    .position(|explored| *explored == Some(at))
                    .unwrap_or(usize::from(done(1) < done(0))),
                (true, false) => 0,
                (false, true) => 1,
                (false, false) => continue,
            };
            self.busy[path] = done(path);
            self.passed_over[path] = 0;
            if ways.hardware && ways.hybrid {
                self.passed_over[1 - path] += 1;
            }
            paths[at] = SHARING[path];
        }
        self.let_time_pass(images.iter().map(|(bytes, _)| *bytes).sum());
        paths
    }

    /// Both work until one has nothing to do. The other one is not taken to be farther behind than by
    /// a large batch on the slower path: pipelines do not run ahead of the device.
    fn let_time_pass(&mut self, bytes: u64) {
        self.largest = (self.largest * FADING).max(bytes as f64);
        let idle = self.busy[0].min(self.busy[1]);
        let most = self.largest / self.rates[0].min(self.rates[1]);
        for busy in &mut self.busy {
            *busy = (*busy - idle).min(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: BackendSet = BackendSet { hardware: true, hybrid: true };

    /// The next random number of 0 to 1 (splitmix64).
    fn draw(state: &mut u64) -> f64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }

    /// A device whose paths have these rates, and for each batch these seconds before they begin; its
    /// clock is the arithmetic.
    struct Device {
        rates: [f64; 2],
        before: [f64; 2],
        noise: f64,
        random: u64,
        batch: usize,
    }

    impl Device {
        fn new(rates: [f64; 2], random: u64) -> Device {
            Device { rates, before: [0.0; 2], noise: 0.0, random, batch: 32 }
        }

        /// Decodes so many batches; returns the engines' share of the bytes, and of each path the most
        /// images that went to the other one in a row.
        fn decode(&mut self, shares: &mut LoadBalancer, batches: usize) -> (f64, [usize; 2]) {
            let mut taken = [0_u64; 2];
            let (mut waits, mut longest) = ([0; 2], [0; 2]);
            for _ in 0..batches {
                let size = |random: &mut u64| 20_000 + (draw(random) * 2e6) as u64;
                let images: Vec<_> =
                    (0..self.batch).map(|_| (size(&mut self.random), BOTH)).collect();
                let mut bytes = [0; 2];
                for (path, (size, _)) in shares.assign(&images).into_iter().zip(&images) {
                    let at = usize::from(path == JpegBackend::Hybrid);
                    bytes[at] += size;
                    waits[at] = 0;
                    waits[1 - at] += 1;
                    longest[1 - at] = longest[1 - at].max(waits[1 - at]);
                }
                for at in [0, 1] {
                    taken[at] += bytes[at];
                    let noise = 1.0 + self.noise * (draw(&mut self.random) - 0.5);
                    if bytes[at] > 0 {
                        let seconds = self.before[at] + bytes[at] as f64 / self.rates[at] * noise;
                        shares.learn(SHARING[at], bytes[at], seconds);
                    }
                }
            }
            (taken[0] as f64 / (taken[0] + taken[1]) as f64, longest)
        }
    }

    fn ideal(rates: [f64; 2]) -> f64 {
        rates[0] / (rates[0] + rates[1])
    }

    #[test]
    fn g5_before_anything_is_measured_two_thirds_go_to_the_engines() {
        let paths = LoadBalancer::new().assign(&[(187_500, BOTH); 300]);
        let share =
            paths.iter().filter(|path| **path == JpegBackend::Hardware).count() as f64 / 300.0;
        assert!((share - 2.0 / 3.0).abs() < 0.01, "{share}");
    }

    #[test]
    fn g5_shares_are_within_five_percent_of_those_that_let_both_finish_together() {
        let mut random = 1;
        for case in 0..300 {
            let rates = [0, 1].map(|_| 1e8 * 10_f64.powf(2.0 * draw(&mut random)));
            let mut device = Device::new(rates, case);
            device.batch = [1, 2, 7, 32, 256][case as usize % 5];
            device.noise = [0.0, 0.4][case as usize % 2];
            let mut shares = LoadBalancer::new();
            device.decode(&mut shares, 60);
            let (share, _) = device.decode(&mut shares, 400);
            let ideal = ideal(rates);
            assert!((share - ideal).abs() < 0.05, "case {case}: {share}, ideal {ideal}, {rates:?}");
            assert!((shares.shares()[0] - ideal).abs() < 0.15, "case {case}: {shares:?}");
        }
    }

    #[test]
    fn g5_shares_follow_a_path_that_becomes_faster_or_slower() {
        for (before, after) in
            [([1e9, 1e9], [8e9, 1e9]), ([4e9, 1e9], [1e8, 1e9]), ([1e8, 5e9], [9e9, 1e8])]
        {
            let mut device = Device::new(before, 7);
            let mut shares = LoadBalancer::new();
            device.decode(&mut shares, 100);
            device.rates = after;
            device.decode(&mut shares, 100);
            let (share, _) = device.decode(&mut shares, 100);
            assert!((share - ideal(after)).abs() < 0.05, "{before:?} to {after:?}: {share}");
        }
    }

    #[test]
    fn g5_a_path_that_takes_long_to_begin_is_used_as_far_as_both_finish_together() {
        let mut device = Device::new([8e9, 1e9], 3);
        // As long as the other one takes for half of a batch.
        device.before[0] = 0.016;
        let mut shares = LoadBalancer::new();
        device.decode(&mut shares, 300);
        let (share, _) = device.decode(&mut shares, 300);
        let batch = 32.0 * 1.02e6;
        let (engines, hybrid) = (0.016 + share * batch / 8e9, (1.0 - share) * batch / 1e9);
        assert!((engines / hybrid - 1.0).abs() < 0.15, "{share}: {engines} and {hybrid} seconds");
    }

    #[test]
    fn g5_no_path_is_forgotten_however_slow_it_was() {
        for rates in [[1e12, 1e3], [1e3, 1e12]] {
            let mut device = Device::new(rates, 5);
            let mut shares = LoadBalancer::new();
            device.decode(&mut shares, 20);
            let (_, longest) = device.decode(&mut shares, 200);
            // At the latest in the batch behind that in which its turn has come.
            let most = EXPLORE_EVERY as usize + 3 * device.batch;
            assert!(longest.iter().all(|&waits| waits <= most), "{rates:?}: {longest:?}");
        }
    }

    #[test]
    fn what_is_no_measurement_changes_nothing() {
        let mut shares = LoadBalancer::new();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            shares.learn(JpegBackend::Hardware, 1000, seconds);
        }
        shares.learn(JpegBackend::Hybrid, 0, 1.0);
        shares.learn(JpegBackend::Host, 1000, 1.0);
        assert_eq!(shares.rates, LoadBalancer::new().rates);
    }

    #[test]
    fn a_large_image_does_not_come_last() {
        let mut images = vec![(1_000, BOTH); 30];
        images.push((100_000, BOTH));
        let mut shares = LoadBalancer { rates: [1e9, 1e9], ..LoadBalancer::new() };
        let paths = shares.assign(&images);
        let alone = paths[30];
        assert!(paths[..30].iter().all(|path| *path != alone));
    }

    #[test]
    fn nobody_gets_what_he_cannot_decode() {
        let ways = |hardware, hybrid| BackendSet { hardware, hybrid };
        let images = [
            (1, ways(true, false)),
            (1, ways(false, true)),
            (1, ways(false, false)),
            (9, ways(true, false)),
        ];
        let expected =
            [JpegBackend::Hardware, JpegBackend::Hybrid, JpegBackend::Host, JpegBackend::Hardware];
        let mut shares = LoadBalancer { passed_over: [99; 2], ..LoadBalancer::new() };
        assert_eq!(shares.assign(&images), expected);
        assert!(shares.assign(&[]).is_empty());
    }
}
