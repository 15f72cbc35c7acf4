//! Promised and measured figures of loading images.

use anyhow::{Result, ensure};

use super::contest::{Contestant, median};
use super::images::{OUR_EVAL, OUR_FLOATS};
use super::peers::Peer;
use super::shares::medians;
use super::table;
use crate::demo::Mode;

/// Minimum ratio of our rate to the rate of another loader.
struct Faster {
    than: &'static str,
    times: f64,
}

/// Maximum ratio of our CPU time to the CPU time of upstream SPDL.
const MOST_CPU_OF_SPDL: f64 = 0.6;
/// Maximum memory in bytes.
const MOST_MEMORY: f64 = 100e6;
/// Minimum ratio of the rate of the training crop, which decodes images in part, to the rate of an
/// evaluation crop of completely decoded images.
const LEAST_GAIN_OF_PARTIAL: f64 = 1.2;

fn ratios(photos: bool, mode: Mode) -> Vec<Faster> {
    let peers = match (photos, mode) {
        (true, _) => vec![(Peer::LibjpegTurbo, 1.3), (Peer::SimplejpegScaled, 1.2)],
        (false, Mode::Eval) => vec![
            (Peer::Torchvision, 1.5),
            (Peer::Spdl, 2.5),
            (Peer::TensorflowAliased, 1.1),
            (Peer::LibjpegTurbo, 0.95),
        ],
        (false, Mode::Train) => {
            vec![(Peer::Tensorflow, 1.3), (Peer::Dali, 2.0), (Peer::Torchvision, 2.0)]
        }
    };
    peers.into_iter().map(|(peer, times)| Faster { than: peer.name(), times }).collect()
}

/// Prints each measured promise with its figure, then the promises that were not measured; returns
/// the number of the latter.
///
/// The first loader must be ours. Fails if a measured promise was missed.
pub(super) fn check(
    photos: bool,
    mode: Mode,
    contestants: &[Contestant],
    shares: Option<&str>,
) -> Result<usize> {
    let ours = &contestants[0];
    let named = |name: &str| contestants.iter().find(|contestant| contestant.name == name);
    let (mut missed, mut unmeasured) = (0, Vec::new());
    let mut say = |kept: bool, line: String| {
        missed += u32::from(!kept);
        println!("{}", table::verdict(kept, &line).1);
    };
    println!();
    for Faster { than, times } in ratios(photos, mode) {
        match named(than) {
            Some(other) => {
                let ratio = ours.ratio_to(other);
                say(
                    ratio >= times,
                    format!("{ratio:.2} x the rate of {than}; promised: at least {times} x"),
                );
            }
            None => unmeasured.push(than.to_owned()),
        }
    }
    let memory = median(ours.of(|run| run.peak_memory_bytes as f64));
    say(
        memory <= MOST_MEMORY,
        format!("{:.0} MB of memory; promised: at most 100 MB", memory / 1e6),
    );
    if !photos {
        let cpu = |contestant: &Contestant| median(contestant.of(|run| run.cpu_s_per_1000));
        match named(Peer::Spdl.name()) {
            Some(other) => {
                let share = cpu(ours) / cpu(other);
                let kept = share <= MOST_CPU_OF_SPDL;
                say(
                    kept,
                    format!("{share:.2} of the CPU time of {}; promised: at most 0.6", other.name),
                );
            }
            None => unmeasured.push(format!("CPU time beside {}", Peer::Spdl.name())),
        }
        match named(OUR_FLOATS) {
            Some(floats) => {
                let cost = ours.ratio_to(floats) - 1.0;
                let line = format!(
                    "normalised float32 planes take {:.1} % more time than uint8 pixels; promised: \
                     at most 8 %",
                    100.0 * cost
                );
                say(cost <= 0.08, line);
            }
            None => unmeasured.push(OUR_FLOATS.to_owned()),
        }
    }
    if mode == Mode::Train && !photos {
        let figures = shares.map(medians).unwrap_or_default();
        let of = |name: &str| figures.iter().find(|(found, _)| found == name).map(|(_, us)| us);
        match (of("fill train nhwc-u8"), of("fill eval, whole")) {
            (Some(partial), Some(whole)) => {
                let gain = whole / partial;
                let line = format!(
                    "{gain:.2} x the rate of an evaluation that decodes whole images, on one thread; \
                     promised: at least {LEAST_GAIN_OF_PARTIAL} x"
                );
                say(gain >= LEAST_GAIN_OF_PARTIAL, line);
            }
            _ => unmeasured.push("the gain of partial decoding".to_owned()),
        }
        if let Some(eval) = named(OUR_EVAL) {
            // Our evaluation mode also decodes only its crop, so this ratio is not a promise.
            println!(
                "        {:.2} x the rate of the evaluation crop of SPDL in Rust",
                ours.ratio_to(eval)
            );
        }
    }
    if !unmeasured.is_empty() {
        println!("not measured: {}", unmeasured.join("; "));
    }
    ensure!(missed == 0, "{missed} of the promises were missed");
    Ok(unmeasured.len())
}

#[cfg(test)]
mod tests {
    use super::super::contest::Contestant;
    use super::super::table::tests::contestant;
    use super::*;

    fn checked(photos: bool, mode: Mode, other: &'static str, seconds: f64) -> Result<usize> {
        let contestants: [Contestant; 2] =
            [contestant("ours", &[1.0]), contestant(other, &[seconds])];
        check(photos, mode, &contestants, None)
    }

    #[test]
    fn a_missed_ratio_is_an_error() {
        for (photos, mode, peer, times) in [
            (false, Mode::Eval, Peer::LibjpegTurbo, 0.95),
            (false, Mode::Eval, Peer::Torchvision, 1.5),
            (false, Mode::Eval, Peer::TensorflowAliased, 1.1),
            (false, Mode::Train, Peer::Tensorflow, 1.3),
            (false, Mode::Train, Peer::Dali, 2.0),
            (true, Mode::Eval, Peer::LibjpegTurbo, 1.3),
            (true, Mode::Train, Peer::SimplejpegScaled, 1.2),
        ] {
            assert!(checked(photos, mode, peer.name(), times + 0.01).is_ok(), "{peer:?}");
            assert!(checked(photos, mode, peer.name(), times - 0.01).is_err(), "{peer:?}");
        }
    }

    #[test]
    fn unmeasured_promises_are_counted() {
        let ours = [contestant("ours", &[1.0])];
        assert_eq!(check(false, Mode::Eval, &ours, None).unwrap(), 6);
        assert_eq!(check(false, Mode::Train, &ours, None).unwrap(), 6);
        assert_eq!(check(true, Mode::Eval, &ours, None).unwrap(), 2);
    }

    #[test]
    fn cpu_time_and_floats_are_bounded() {
        // The other loader is as fast as ours and uses as much CPU time: the ratio 1.0 exceeds the
        // promised 0.6.
        let error = checked(false, Mode::Eval, Peer::Spdl.name(), 9.0).unwrap_err();
        assert_eq!(error.to_string(), "1 of the promises were missed");
        assert!(checked(false, Mode::Eval, OUR_FLOATS, 1.07).is_ok());
        assert!(checked(false, Mode::Eval, OUR_FLOATS, 1.09).is_err());
    }

    #[test]
    fn the_gain_of_partial_decoding_is_read_from_the_shares() {
        let ours = [contestant("ours", &[1.0])];
        let gain = |whole: &str| {
            let text = format!("fill train nhwc-u8  100.0 99.0\nfill eval, whole  {whole} 1.0\n");
            check(false, Mode::Train, &ours, Some(&text))
        };
        assert!(gain("121.0").is_ok());
        assert!(gain("119.0").is_err());
    }
}
