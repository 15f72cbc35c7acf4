use proptest::prelude::*;

use super::*;
use crate::source::random::SampleRng;
use crate::stage::grouping::law;

fn packer(packing: &Packing) -> Packer<u64> {
    Packer::new(packing.clone(), |&length| length).unwrap()
}

fn packs(packing: &Packing, items: &[u64]) -> Vec<Vec<u64>> {
    let epoch = law::holds(|| packer(packing), items);
    epoch.told.into_iter().map(|told| told.aggregate.items).collect()
}

/// The same, as places of items.
fn places(packing: &Packing, items: &[u64]) -> Vec<Vec<usize>> {
    law::holds(|| packer(packing), items).told.into_iter().map(|told| told.members).collect()
}

#[test]
fn first_fit_takes_the_oldest_sequence_with_room_and_best_fit_the_fullest() {
    let items = [5, 7, 2, 3, 1];
    let packing = Packing::new(10);
    assert_eq!(packs(&packing.clone().first_fit(), &items), [vec![5, 2, 3], vec![7, 1]]);
    assert_eq!(packs(&packing.best_fit(), &items), [vec![7, 2, 1], vec![5, 3]]);
}

#[test]
fn best_fit_takes_the_oldest_among_equals() {
    assert_eq!(places(&Packing::new(10), &[6, 6, 4, 1]), [[0, 2], [1, 3]]);
}

#[test]
fn the_fullest_goes_out_where_one_more_would_have_to_be_opened() {
    for packing in [Packing::new(10).open(2), Packing::new(10).open(2).first_fit()] {
        assert_eq!(packs(&packing, &[6, 8, 7, 4]), [vec![8], vec![6, 4], vec![7]]);
        // The oldest among equals, and the new one where it is the fullest.
        let items = [7, 7, 6, 9, 3];
        assert_eq!(places(&packing, &items), [vec![0], vec![3], vec![1, 4], vec![2]]);
        // What fills a sequence by itself needs none to be opened.
        assert_eq!(packs(&packing, &[6, 8, 10, 3]), [vec![10], vec![6, 3], vec![8]]);
    }
}

#[test]
fn a_sequence_has_no_more_items_than_it_may() {
    let packing = Packing::new(10).most_items(2);
    assert_eq!(packs(&packing, &[1, 2, 3, 4, 5]), [vec![1, 2], vec![3, 4], vec![5]]);
}

#[test]
fn items_that_cannot_be_packed_are_errors_and_change_nothing() {
    let mut packer = packer(&Packing::new(10));
    assert_eq!(packer.accumulate(11).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(packer.accumulate(u64::MAX).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(packer.accumulate(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(packer.accumulate(10).unwrap().unwrap().items, [10]);
    assert_eq!(packer.inputs(), [0], "refused items are not counted");
    for packing in [Packing::new(0), Packing::new(9).open(0), Packing::new(9).most_items(0)] {
        let error = Packer::new(packing, |&length: &u64| length).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn offsets_tell_where_items_begin() {
    let mut packer = packer(&Packing::new(10));
    packer.accumulate(3).unwrap();
    let packed = packer.accumulate(7).unwrap().unwrap();
    assert_eq!((&packed.offsets[..], packed.used(), packed.capacity), (&[0, 3, 10][..], 10, 10));
    assert_eq!(packed.lengths().collect::<Vec<_>>(), [3, 7]);
    assert_eq!(Packed::<u64>::new(5).used(), 0);
}

#[test]
fn the_fill_rate_counts_what_has_gone_out() {
    let mut packer = packer(&Packing::new(10));
    packer.accumulate(6).unwrap();
    assert_eq!(packer.fill_rate(), Some(FillRate { used: 0, capacity: 0 }));
    packer.accumulate(4).unwrap();
    packer.accumulate(7).unwrap();
    packer.flush().unwrap();
    assert_eq!(packer.fill_rate(), Some(FillRate { used: 17, capacity: 20 }));
}

/// How many sequences an epoch makes.
fn count(packing: &Packing, items: &[u64]) -> u64 {
    let mut packer = packer(packing);
    let full = items.iter().filter(|&&item| packer.accumulate(item).unwrap().is_some()).count();
    let rest = std::iter::from_fn(|| packer.flush_more().unwrap()).count();
    (full + rest) as u64
}

#[test]
fn packing_comes_close_to_the_least_number_of_sequences() {
    // No packing needs fewer than the tokens fill. Lengths from 1 to half a sequence.
    let mut rng = SampleRng::new(0, crate::source::sample::SampleId::default(), "lengths");
    let items: Vec<u64> = (0..20_000).map(|_| 1 + (rng.unit() * 512.0) as u64).collect();
    let least = items.iter().sum::<u64>().div_ceil(1024);
    let over = |packing: Packing| count(&packing, &items) as f64 / least as f64 - 1.0;
    let packing = Packing::new(1024);
    assert!(over(packing.clone()) < 0.01, "best fit: {}", over(packing.clone()));
    assert!(over(packing.clone().first_fit()) < 0.01);
    let one = over(packing.clone().open(1));
    assert!((0.1..0.4).contains(&one), "one open sequence wastes a quarter of an item: {one}");
    // Long items, then those that just fill the rest of each: a packing without any loss, which
    // best fit finds, since the fullest with room is the one that it fills.
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
    fn every_item_comes_out_once_within_all_bounds_from_any_point_on(
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
        let epoch = law::holds(|| packer(&packing), &items);
        prop_assert!(epoch.refused.iter().all(|&at| items[at] == 0 || items[at] > capacity));
        prop_assert_eq!(epoch.left_out, 0);
        prop_assert!(epoch.most_held as u64 <= open as u64 * (capacity - 1));
        for told in &epoch.told {
            let pack = &told.aggregate;
            let named: Vec<u64> = told.members.iter().map(|&place| items[place]).collect();
            prop_assert_eq!(&pack.items, &named);
            prop_assert!(told.members.is_sorted());
            prop_assert!(pack.used() <= capacity && pack.used() == named.iter().sum::<u64>());
            prop_assert_eq!(pack.lengths().collect::<Vec<_>>(), named);
            prop_assert!(pack.items.len() <= most_items.unwrap_or(usize::MAX));
        }
        // At no time could two open sequences have been one: so more than half is used.
        let used: u64 = epoch.told.iter().map(|told| told.aggregate.used()).sum();
        if most_items.is_none() && open == 5 && epoch.told.len() <= 5 && epoch.told.len() > 1 {
            prop_assert!(2 * used > capacity * (epoch.told.len() as u64 - 1));
        }
    }
}
