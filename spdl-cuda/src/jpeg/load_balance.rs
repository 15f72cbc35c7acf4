//! Distribution of images over the hardware and the hybrid backend of nvJPEG.

use super::header::BackendSet;

/// The backend that decodes a JPEG.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JpegBackend {
    /// `NVJPEG_BACKEND_HARDWARE`: the JPEG engines of the device.
    Hardware,
    /// `NVJPEG_BACKEND_HYBRID`: Huffman decoding on the CPU, the remaining steps on the
    /// multiprocessors.
    Hybrid,
    /// The host, with a decoder of `spdl-media`.
    Host,
}

/// A backend may receive no image while the other backend receives this many images that both
/// support. The unused backend is then assigned one image of the next batch: without such a
/// measurement, a change of its speed would not be detected.
const EXPLORE_EVERY: u32 = 50;
/// Weight of a new measurement in the moving average.
const NEW_WEIGHT: f64 = 0.25;
/// The factor by which the recorded largest batch size decays with each smaller batch.
const DECAY: f64 = 0.99;
/// The backends among which images are balanced; the position in this list is the index of a
/// backend.
const BALANCED: [JpegBackend; 2] = [JpegBackend::Hardware, JpegBackend::Hybrid];

/// Assigns images to backends by measured throughput, so that both backends finish at about the
/// same time.
///
/// The model keeps the queued work of each backend from batch to batch, so that the shares are also
/// right for small batches.
#[derive(Clone, Debug)]
pub(crate) struct LoadBalancer {
    /// Throughput in bytes of pixels per second.
    rates: [f64; 2],
    is_measured: [bool; 2],
    /// Duration of the queued work, in seconds.
    queued: [f64; 2],
    /// Number of eligible images that the other backend received since this backend received its
    /// last image.
    passed_over: [u32; 2],
    /// The largest recent batch, in bytes of pixels.
    largest: f64,
}

impl LoadBalancer {
    /// The initial rates assign two thirds of the pixels to the hardware backend, close to DALI's
    /// default (`hw_decoder_load` is 0.65).
    pub(crate) fn new() -> LoadBalancer {
        LoadBalancer {
            rates: [2e9, 1e9],
            is_measured: [false; 2],
            queued: [0.0; 2],
            passed_over: [0; 2],
            largest: 0.0,
        }
    }

    /// Adds a measurement: `seconds` for images of `bytes` bytes of pixels.
    pub(crate) fn record(&mut self, backend: JpegBackend, bytes: u64, seconds: f64) {
        let Some(at) = BALANCED.iter().position(|balanced| *balanced == backend) else { return };
        let rate = bytes as f64 / seconds;
        if !(rate.is_finite() && rate > 0.0) {
            return;
        }
        let weight = if self.is_measured[at] { NEW_WEIGHT } else { 1.0 };
        // Times are averaged, not rates, so that an outlier with a very short time does not
        // dominate the average.
        self.rates[at] = 1.0 / ((1.0 - weight) / self.rates[at] + weight / rate);
        self.is_measured[at] = true;
    }

    /// The share of each backend, hardware first, in the pixels of the images that both can decode.
    pub(crate) fn shares(&self) -> [f64; 2] {
        self.rates.map(|rate| rate / (self.rates[0] + self.rates[1]))
    }

    /// Assigns a backend to each image. `images` has the size of the pixels in bytes and the
    /// supporting backends of each image.
    ///
    /// The largest images are assigned first, each to the backend that would finish it sooner.
    /// Images that no backend of the device decodes are assigned to the host.
    pub(crate) fn assign(&mut self, images: &[(u64, BackendSet)]) -> Vec<JpegBackend> {
        let mut order: Vec<usize> = (0..images.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(images[at].0));
        let mut assigned = vec![JpegBackend::Host; images.len()];
        let mut explored = [None; 2];
        for (backend, explored) in explored.iter_mut().enumerate() {
            if self.passed_over[backend] >= EXPLORE_EVERY {
                // For a measurement, the smallest eligible image is sufficient.
                let is_eligible =
                    |at: &&usize| images[**at].1 == BackendSet { hardware: true, hybrid: true };
                *explored = order.iter().rev().find(is_eligible).copied();
            }
        }
        for at in order {
            let (bytes, backends) = images[at];
            let finish = |backend: usize| self.queued[backend] + bytes as f64 / self.rates[backend];
            let backend = match (backends.hardware, backends.hybrid) {
                (true, true) => explored
                    .iter()
                    .position(|explored| *explored == Some(at))
                    .unwrap_or(usize::from(finish(1) < finish(0))),
                (true, false) => 0,
                (false, true) => 1,
                (false, false) => continue,
            };
            self.queued[backend] = finish(backend);
            self.passed_over[backend] = 0;
            if backends.hardware && backends.hybrid {
                self.passed_over[1 - backend] += 1;
            }
            assigned[at] = BALANCED[backend];
        }
        self.advance(images.iter().map(|(bytes, _)| *bytes).sum());
        assigned
    }

    /// Advances the modelled time until one backend is idle. The queue of the other backend is
    /// limited to the time of a large batch on the slower backend, because pipelines do not queue
    /// more work than that.
    fn advance(&mut self, bytes: u64) {
        self.largest = (self.largest * DECAY).max(bytes as f64);
        let elapsed = self.queued[0].min(self.queued[1]);
        let max = self.largest / self.rates[0].min(self.rates[1]);
        for queued in &mut self.queued {
            *queued = (*queued - elapsed).min(max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: BackendSet = BackendSet { hardware: true, hybrid: true };

    /// The next random number from 0 to 1 (SplitMix64).
    fn draw(state: &mut u64) -> f64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }

    /// A simulated device whose backends have these rates, and a latency in seconds for each batch.
    struct SimulatedDevice {
        rates: [f64; 2],
        latency: [f64; 2],
        noise: f64,
        random: u64,
        batch: usize,
    }

    impl SimulatedDevice {
        fn new(rates: [f64; 2], random: u64) -> SimulatedDevice {
            SimulatedDevice { rates, latency: [0.0; 2], noise: 0.0, random, batch: 32 }
        }

        fn decode(&mut self, balancer: &mut LoadBalancer, batches: usize) -> (f64, [usize; 2]) {
            let mut taken = [0_u64; 2];
            let (mut waits, mut longest) = ([0; 2], [0; 2]);
            for _ in 0..batches {
                let size = |random: &mut u64| 20_000 + (draw(random) * 2e6) as u64;
                let images: Vec<_> =
                    (0..self.batch).map(|_| (size(&mut self.random), BOTH)).collect();
                let mut bytes = [0; 2];
                for (backend, (size, _)) in balancer.assign(&images).into_iter().zip(&images) {
                    let at = usize::from(backend == JpegBackend::Hybrid);
                    bytes[at] += size;
                    waits[at] = 0;
                    waits[1 - at] += 1;
                    longest[1 - at] = longest[1 - at].max(waits[1 - at]);
                }
                for at in [0, 1] {
                    taken[at] += bytes[at];
                    let noise = 1.0 + self.noise * (draw(&mut self.random) - 0.5);
                    if bytes[at] > 0 {
                        let seconds = self.latency[at] + bytes[at] as f64 / self.rates[at] * noise;
                        balancer.record(BALANCED[at], bytes[at], seconds);
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
    fn g5_two_thirds_go_to_the_hardware_before_any_measurement() {
        let paths = LoadBalancer::new().assign(&[(187_500, BOTH); 300]);
        let share =
            paths.iter().filter(|path| **path == JpegBackend::Hardware).count() as f64 / 300.0;
        assert!((share - 2.0 / 3.0).abs() < 0.01, "{share}");
    }

    #[test]
    fn g5_shares_are_within_five_percent_of_the_ideal() {
        let mut random = 1;
        for case in 0..300 {
            let rates = [0, 1].map(|_| 1e8 * 10_f64.powf(2.0 * draw(&mut random)));
            let mut device = SimulatedDevice::new(rates, case);
            device.batch = [1, 2, 7, 32, 256][case as usize % 5];
            device.noise = [0.0, 0.4][case as usize % 2];
            let mut balancer = LoadBalancer::new();
            device.decode(&mut balancer, 60);
            let (share, _) = device.decode(&mut balancer, 400);
            let ideal = ideal(rates);
            assert!((share - ideal).abs() < 0.05, "case {case}: {share}, ideal {ideal}, {rates:?}");
            assert!((balancer.shares()[0] - ideal).abs() < 0.15, "case {case}: {balancer:?}");
        }
    }

    #[test]
    fn g5_shares_follow_a_backend_that_becomes_faster_or_slower() {
        for (before, after) in
            [([1e9, 1e9], [8e9, 1e9]), ([4e9, 1e9], [1e8, 1e9]), ([1e8, 5e9], [9e9, 1e8])]
        {
            let mut device = SimulatedDevice::new(before, 7);
            let mut balancer = LoadBalancer::new();
            device.decode(&mut balancer, 100);
            device.rates = after;
            device.decode(&mut balancer, 100);
            let (share, _) = device.decode(&mut balancer, 100);
            assert!((share - ideal(after)).abs() < 0.05, "{before:?} to {after:?}: {share}");
        }
    }

    #[test]
    fn g5_latency_is_part_of_the_balance() {
        let mut device = SimulatedDevice::new([8e9, 1e9], 3);
        // The time of half a batch on the other backend.
        device.latency[0] = 0.016;
        let mut balancer = LoadBalancer::new();
        device.decode(&mut balancer, 300);
        let (share, _) = device.decode(&mut balancer, 300);
        let batch = 32.0 * 1.02e6;
        let (engines, hybrid) = (0.016 + share * batch / 8e9, (1.0 - share) * batch / 1e9);
        assert!((engines / hybrid - 1.0).abs() < 0.15, "{share}: {engines} and {hybrid} seconds");
    }

    #[test]
    fn g5_a_slow_backend_is_still_explored() {
        for rates in [[1e12, 1e3], [1e3, 1e12]] {
            let mut device = SimulatedDevice::new(rates, 5);
            let mut balancer = LoadBalancer::new();
            device.decode(&mut balancer, 20);
            let (_, longest) = device.decode(&mut balancer, 200);
            // The other backend is measured at the latest in the batch after the one in which a
            // measurement was due.
            let most = EXPLORE_EVERY as usize + 3 * device.batch;
            assert!(longest.iter().all(|&waits| waits <= most), "{rates:?}: {longest:?}");
        }
    }

    #[test]
    fn invalid_measurements_are_ignored() {
        let mut balancer = LoadBalancer::new();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            balancer.record(JpegBackend::Hardware, 1000, seconds);
        }
        balancer.record(JpegBackend::Hybrid, 0, 1.0);
        balancer.record(JpegBackend::Host, 1000, 1.0);
        assert_eq!(balancer.rates, LoadBalancer::new().rates);
    }

    #[test]
    fn a_large_image_is_assigned_first() {
        let mut images = vec![(1_000, BOTH); 30];
        images.push((100_000, BOTH));
        let mut balancer = LoadBalancer { rates: [1e9, 1e9], ..LoadBalancer::new() };
        let paths = balancer.assign(&images);
        let alone = paths[30];
        assert!(paths[..30].iter().all(|path| *path != alone));
    }

    #[test]
    fn images_go_only_to_backends_that_decode_them() {
        let set = |hardware, hybrid| BackendSet { hardware, hybrid };
        let images = [
            (1, set(true, false)),
            (1, set(false, true)),
            (1, set(false, false)),
            (9, set(true, false)),
        ];
        let expected =
            [JpegBackend::Hardware, JpegBackend::Hybrid, JpegBackend::Host, JpegBackend::Hardware];
        let mut balancer = LoadBalancer { passed_over: [99; 2], ..LoadBalancer::new() };
        assert_eq!(balancer.assign(&images), expected);
        assert!(balancer.assign(&[]).is_empty());
    }
}
