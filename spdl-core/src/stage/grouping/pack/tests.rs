use proptest::prelude::*;

use super::*;
use crate::source::random::SampleRng;
use crate::stage::grouping::resume_check::run_and_resume;

fn packer(packing: &Packing) -> Packer<u64> {
    Packer::new(packing.clone(), |&length| length).unwrap()
}

fn packs(packing: &Packing, items: &[u64]) -> Vec<Vec<u64>> {
    let epoch = run_and_resume(|| packer(packing), items);
    epoch.emitted.into_iter().map(|output| output.aggregate.items).collect()
}

/// The inputs of each sequence, as indices into the items.
fn pack_indices(packing: &Packing, items: &[u64]) -> Vec<Vec<usize>> {
    run_and_resume(|| packer(packing), items)
        .emitted
        .into_iter()
        .map(|output| output.members)
        .collect()
}

#[test]
fn first_fit_selects_the_oldest_sequence_and_best_fit_the_fullest() {
    let items = [5, 7, 2, 3, 1];
    let packing = Packing::new(10);
    assert_eq!(packs(&packing.clone().first_fit(), &items), [vec![5, 2, 3], vec![7, 1]]);
    assert_eq!(packs(&packing.best_fit(), &items), [vec![7, 2, 1], vec![5, 3]]);
}

#[test]
fn best_fit_selects_the_oldest_of_equally_full_sequences() {
    assert_eq!(pack_indices(&Packing::new(10), &[6, 6, 4, 1]), [[0, 2], [1, 3]]);
}

#[test]
fn the_fullest_sequence_is_emitted_at_the_limit_of_open_sequences() {
    for packing in [Packing::new(10).open(2), Packing::new(10).open(2).first_fit()] {
        assert_eq!(packs(&packing, &[6, 8, 7, 4]), [vec![8], vec![6, 4], vec![7]]);
        // The oldest of equally full sequences, and the new one if it is the fullest.
        let items = [7, 7, 6, 9, 3];
        assert_eq!(pack_indices(&packing, &items), [vec![0], vec![3], vec![1, 4], vec![2]]);
        // An item that fills a sequence is emitted alone.
        assert_eq!(packs(&packing, &[6, 8, 10, 3]), [vec![10], vec![6, 3], vec![8]]);
    }
}

#[test]
fn most_items_limits_the_items_of_a_sequence() {
    let packing = Packing::new(10).most_items(2);
    assert_eq!(packs(&packing, &[1, 2, 3, 4, 5]), [vec![1, 2], vec![3, 4], vec![5]]);
}

#[test]
fn rejected_items_are_errors_and_change_nothing() {
    let mut packer = packer(&Packing::new(10));
    assert_eq!(packer.accumulate(11).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(packer.accumulate(u64::MAX).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(packer.accumulate(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(packer.accumulate(10).unwrap().unwrap().items, [10]);
    assert_eq!(packer.inputs(), [0], "rejected items are not counted");
    for packing in [Packing::new(0), Packing::new(9).open(0), Packing::new(9).most_items(0)] {
        let error = Packer::new(packing, |&length: &u64| length).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn offsets_are_cumulative_lengths() {
    let mut packer = packer(&Packing::new(10));
    packer.accumulate(3).unwrap();
    let packed = packer.accumulate(7).unwrap().unwrap();
    assert_eq!((&packed.offsets[..], packed.used(), packed.capacity), (&[0, 3, 10][..], 10, 10));
    assert_eq!(packed.lengths().collect::<Vec<_>>(), [3, 7]);
    assert_eq!(Packed::<u64>::new(5).used(), 0);
}

#[test]
fn fill_rate_counts_emitted_sequences() {
    let mut packer = packer(&Packing::new(10));
    packer.accumulate(6).unwrap();
    assert_eq!(packer.fill_rate(), Some(FillRate { used: 0, capacity: 0 }));
    packer.accumulate(4).unwrap();
    packer.accumulate(7).unwrap();
    packer.flush().unwrap();
    assert_eq!(packer.fill_rate(), Some(FillRate { used: 17, capacity: 20 }));
}

/// Number of sequences in an epoch.
fn count(packing: &Packing, items: &[u64]) -> u64 {
    let mut packer = packer(packing);
    let full = items.iter().filter(|&&item| packer.accumulate(item).unwrap().is_some()).count();
    let flushed = std::iter::from_fn(|| packer.flush_more().unwrap()).count();
    (full + flushed) as u64
}

#[test]
fn packing_is_close_to_the_lower_bound_of_sequences() {
    // The lower bound is tokens / capacity. Lengths are 1 to half the capacity.
    let mut rng = SampleRng::new(0, crate::source::sample::SampleId::default(), "lengths");
    let items: Vec<u64> = (0..20_000).map(|_| 1 + (rng.unit() * 512.0) as u64).collect();
    let least = items.iter().sum::<u64>().div_ceil(1024);
    let over = |packing: Packing| count(&packing, &items) as f64 / least as f64 - 1.0;
    let packing = Packing::new(1024);
    assert!(over(packing.clone()) < 0.01, "best fit: {}", over(packing.clone()));
    assert!(over(packing.clone().first_fit()) < 0.01);
    let one = over(packing.clone().open(1));
    assert!((0.1..0.4).contains(&one), "excess of sequences with `open(1)`: {one}");
    // Long items, then items that exactly fill the remainders. Best fit finds the perfect packing.
    let pairs: Vec<u64> = (0..1000_u64)
        .flat_map(|group| {
            let short = move |n: u64| 100 + (7 * group + 37 * n) % 400;
            (0..10).map(move |n| 1024 - short(n)).chain((0..10).map(move |n| short(n * 3 % 10)))
        })
        .collect();
    assert_eq!(pairs.iter().sum::<u64>(), 1024 * 10_000);
    assert_eq!(count(&packing, &pairs), 10_000);
    assert!(count(&packing.first_fit(), &pairs) > 10_000);
}

proptest! {
    #[test]
    fn every_item_is_emitted_once_within_bounds_and_after_any_resume(
        items in prop::collection::vec(0u64..40, 0..60),
        capacity in 1u64..40,
        open in 1usize..6,
        first_fit: bool,
        most_items in prop::option::of(1usize..5),
    ) {
        let mut packing = Packing::new(capacity).open(open);
        if first_fit {
            packing = packing.first_fit();
        }
        if let Some(most) = most_items {
            packing = packing.most_items(most);
        }
        let epoch = run_and_resume(|| packer(&packing), &items);
        prop_assert!(epoch.rejected.iter().all(|&at| items[at] == 0 || items[at] > capacity));
        prop_assert_eq!(epoch.left_out, 0);
        prop_assert!(epoch.max_held as u64 <= open as u64 * (capacity - 1));
        for output in &epoch.emitted {
            let pack = &output.aggregate;
            let members: Vec<u64> = output.members.iter().map(|&index| items[index]).collect();
            prop_assert_eq!(&pack.items, &members);
            prop_assert!(output.members.is_sorted());
            prop_assert!(pack.used() <= capacity && pack.used() == members.iter().sum::<u64>());
            prop_assert_eq!(pack.lengths().collect::<Vec<_>>(), members);
            prop_assert!(pack.items.len() <= most_items.unwrap_or(usize::MAX));
        }
        // No two open sequences fit into one, so more than half of the capacity is used.
        let used: u64 = epoch.emitted.iter().map(|output| output.aggregate.used()).sum();
        if most_items.is_none() && open == 5 && epoch.emitted.len() <= 5 && epoch.emitted.len() > 1 {
            prop_assert!(2 * used > capacity * (epoch.emitted.len() as u64 - 1));
        }
    }
}
