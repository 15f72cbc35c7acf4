//! Which engine decodes which image.

use super::header::{JpegCoding, JpegColor, JpegHeader, Subsampling};

/// What decodes a JPEG.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JpegPath {
    /// The engines for it that some devices have.
    Hardware,
    /// The CPU undoes the Huffman codes, the multiprocessors do the rest.
    Hybrid,
    /// The CPU alone, by another decoder than this crate's.
    Host,
}

/// The paths that take an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ways {
    pub(crate) hardware: bool,
    pub(crate) hybrid: bool,
}

impl Ways {
    /// By what the header says. The library has the last word on the engines.
    pub(crate) fn of(header: &JpegHeader) -> Ways {
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
        Ways { hardware, hybrid: bits && plain }
    }
}

/// How fast each path is, in pixels a second.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    hardware: f64,
    hybrid: f64,
}

impl Rates {
    /// Two thirds to the engines, which is near what others have found to be a good share (DALI's
    /// `hw_decoder_load` is 0.65). Nothing is measured yet.
    pub(crate) fn new() -> Rates {
        Rates { hardware: 2e9, hybrid: 1e9 }
    }

    /// A path for each image: the largest first, each where it is done the soonest. What neither path
    /// of the device takes is for the host.
    pub(crate) fn assign(&self, images: &[(u64, Ways)]) -> Vec<JpegPath> {
        let mut order: Vec<usize> = (0..images.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(images[at].0));
        let rates = [self.hardware, self.hybrid];
        let mut busy = [0.0_f64; 2];
        let mut paths = vec![JpegPath::Host; images.len()];
        for at in order {
            let (pixels, ways) = images[at];
            let done = |path: usize| busy[path] + pixels as f64 / rates[path];
            let path = match (ways.hardware, ways.hybrid) {
                (true, true) => usize::from(done(1) < done(0)),
                (true, false) => 0,
                (false, true) => 1,
                (false, false) => continue,
            };
            busy[path] = done(path);
            paths[at] = [JpegPath::Hardware, JpegPath::Hybrid][path];
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Ways = Ways { hardware: true, hybrid: true };

    fn share(rates: &Rates, path: JpegPath) -> f64 {
        let images = [(187_500, BOTH); 300];
        let paths = rates.assign(&images);
        paths.iter().filter(|it| **it == path).count() as f64 / 300.0
    }

    #[test]
    fn images_are_shared_out_by_the_rates() {
        assert!((share(&Rates::new(), JpegPath::Hardware) - 2.0 / 3.0).abs() < 0.01);
        let rates = Rates { hardware: 1e9, hybrid: 4e9 };
        assert!((share(&rates, JpegPath::Hybrid) - 0.8).abs() < 0.01);
    }

    #[test]
    fn a_large_image_does_not_come_last() {
        let mut images = vec![(1_000, BOTH); 30];
        images.push((100_000, BOTH));
        let rates = Rates { hardware: 1e9, hybrid: 1e9 };
        let paths = rates.assign(&images);
        let alone = paths[30];
        assert!(paths[..30].iter().all(|path| *path != alone));
    }

    #[test]
    fn nobody_gets_what_he_cannot_decode() {
        let ways = |hardware, hybrid| Ways { hardware, hybrid };
        let images = [
            (1, ways(true, false)),
            (1, ways(false, true)),
            (1, ways(false, false)),
            (9, ways(true, false)),
        ];
        let expected = [JpegPath::Hardware, JpegPath::Hybrid, JpegPath::Host, JpegPath::Hardware];
        assert_eq!(Rates::new().assign(&images), expected);
        assert!(Rates::new().assign(&[]).is_empty());
    }
}
