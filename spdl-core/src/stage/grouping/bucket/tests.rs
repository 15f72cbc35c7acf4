use proptest::prelude::*;

use super::*;
use crate::stage::grouping::resume_check::run_and_resume;

fn bucketer(bucketing: Bucketing) -> Bucketer<f64> {
    Bucketer::new(bucketing, |&length| length).unwrap()
}

/// The batches of an epoch: bucket and items.
fn batches(bucketing: Bucketing, items: &[f64]) -> Vec<(usize, Vec<f64>)> {
    let epoch = run_and_resume(|| bucketer(bucketing.clone()), items);
    epoch
        .emitted
        .into_iter()
        .map(|output| (output.aggregate.bucket, output.aggregate.items))
        .collect()
}

#[test]
fn a_boundary_belongs_to_the_bucket_below_it() {
    let bucketing = Bucketing::boundaries([10.0, 20.0]).batch_size(9);
    let items = [20.5, 10.0, 0.0, 10.5, 20.0, 1e9];
    let expected = [(0, vec![10.0, 0.0]), (1, vec![10.5, 20.0]), (2, vec![20.5, 1e9])];
    assert_eq!(batches(bucketing, &items), expected);
}

#[test]
fn the_nearest_bucket_is_nearest_by_ratio() {
    // The ratios 0.5 and 2 are equally far from 1.
    let bucketing = Bucketing::nearest([0.5, 1.0, 2.0]).batch_size(9);
    let items = [0.1, 0.70, 0.72, 1.41, 1.42, 9.0];
    let expected = [(0, vec![0.1, 0.70]), (1, vec![0.72, 1.41]), (2, vec![1.42, 9.0])];
    assert_eq!(batches(bucketing, &items), expected);
    let middle = Bucketing::nearest([1.0, 4.0]);
    assert_eq!((middle.bucket_of(2.0), middle.bucket_of(2.0 + 1e-9)), (0, 1));
}

#[test]
fn log_spaced_boundaries_have_a_constant_ratio() {
    let BucketBounds::UpTo(boundaries) = Bucketing::log_spaced(30.0, 2000.0, 9).bounds else {
        panic!()
    };
    assert_eq!((boundaries.len(), boundaries[0], boundaries[7]), (8, 30.0, 2000.0));
    let ratio = (2000.0_f64 / 30.0).powf(1.0 / 7.0);
    assert!(boundaries.windows(2).all(|pair| (pair[1] / pair[0] - ratio).abs() < 1e-9));
    assert_eq!(Bucketing::log_spaced(30.0, 2000.0, 1), Bucketing::boundaries([]));
    assert_eq!(Bucketing::log_spaced(30.0, 2000.0, 2), Bucketing::boundaries([30.0]));
    assert_eq!(Bucketing::log_spaced(30.0, 60.0, 3), Bucketing::boundaries([30.0, 60.0]));
}

#[test]
fn full_buckets_are_emitted_immediately_and_others_at_the_end_in_order() {
    let bucketing = Bucketing::boundaries([10.0]).batch_sizes([3, 2]);
    let items = [11.0, 1.0, 2.0, 12.0, 13.0, 3.0, 4.0];
    let expected =
        [(1, vec![11.0, 12.0]), (0, vec![1.0, 2.0, 3.0]), (0, vec![4.0]), (1, vec![13.0])];
    assert_eq!(batches(bucketing.clone(), &items), expected);
    assert_eq!(batches(bucketing.clone().drop_last(), &items), expected[..2]);
    assert_eq!(run_and_resume(|| bucketer(bucketing.clone().drop_last()), &items).left_out, 2);
}

#[test]
fn a_budget_bounds_the_padded_batch() {
    let bucketing = Bucketing::boundaries([]).budget(12);
    // 3 × 4 = 12 fits; 3 × 5 = 15 and 2 × 7 = 14 do not.
    let items = [4.0, 2.0, 3.2, 5.0, 4.0, 4.0, 7.0, 1.0];
    let expected = [
        (0, vec![4.0, 2.0, 3.2]),
        (0, vec![5.0, 4.0]),
        (0, vec![4.0]),
        (0, vec![7.0]),
        (0, vec![1.0]),
    ];
    assert_eq!(batches(bucketing, &items), expected);
}

#[test]
fn an_item_that_exceeds_the_budget_fails_or_is_a_batch() {
    let bucketing = Bucketing::boundaries([]).budget(10).batch_size(3);
    let items = [2.0, 11.0, 3.0, 10.0];
    let strict = run_and_resume(|| bucketer(bucketing.clone()), &items);
    assert_eq!(strict.rejected, [1]);
    let members: Vec<_> = strict.emitted.iter().map(|output| &output.members[..]).collect();
    assert_eq!(members, [&[0, 2][..], &[3]]);
    let error = bucketer(bucketing.clone()).accumulate(11.0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let expected = [(0, vec![11.0]), (0, vec![2.0, 3.0]), (0, vec![10.0])];
    assert_eq!(batches(bucketing.long_items_alone(), &items), expected);
}

#[test]
fn skipping_more_is_an_error_and_loses_no_items() {
    let mut bucketer = bucketer(Bucketing::boundaries([]).budget(10));
    bucketer.accumulate(2.0).unwrap();
    // The item does not fit the open batch, and fills the next one.
    assert_eq!(bucketer.accumulate(9.0).unwrap().unwrap().items, [2.0]);
    assert_eq!(bucketer.accumulate(1.0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(bucketer.flush().unwrap().unwrap().items, [9.0]);
    assert_eq!(bucketer.inputs(), [1]);
    assert_eq!(bucketer.flush_more().unwrap(), None);
}

#[test]
fn an_invalid_length_is_an_error() {
    for key in [f64::NAN, f64::INFINITY, -1.0] {
        let error = bucketer(Bucketing::boundaries([]).batch_size(1)).accumulate(key).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{key}");
    }
    assert!(bucketer(Bucketing::nearest([1.0]).batch_size(1)).accumulate(0.0).is_err());
    assert!(bucketer(Bucketing::boundaries([]).batch_size(1)).accumulate(0.0).is_ok());
}

#[test]
fn invalid_settings_are_errors() {
    let some = || Bucketing::boundaries([1.0, 2.0]);
    let wrong = [
        (some(), "batches are unbounded"),
        (some().batch_size(0), "batch size is 0"),
        (some().batch_sizes([1, 2, 0]), "batch size is 0"),
        (some().batch_sizes([1, 2]), "2 batch sizes for 3 buckets"),
        (some().budget(0), "budget is 0"),
        (Bucketing::boundaries([2.0, 1.0]).batch_size(1), "ascend"),
        (Bucketing::boundaries([1.0, 1.0]).batch_size(1), "ascend"),
        (Bucketing::boundaries([0.0]).batch_size(1), "positive"),
        (Bucketing::boundaries([f64::NAN]).batch_size(1), "positive"),
        (Bucketing::nearest([f64::INFINITY]).batch_size(1), "positive"),
        (Bucketing::nearest([]).batch_size(1), "no buckets"),
        (Bucketing::nearest([1.0]).batch_size(1).budget(5), "ratios"),
    ];
    for (bucketing, message) in wrong {
        let error = Bucketer::new(bucketing.clone(), |&length: &f64| length).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains(message), "{bucketing:?}: {error}");
    }
}

#[test]
fn fill_rate_is_the_share_that_is_not_padding() {
    let mut lengths = bucketer(Bucketing::boundaries([]).batch_size(3));
    for length in [1.0, 2.0, 4.0, 3.0] {
        lengths.accumulate(length).unwrap();
    }
    assert_eq!(lengths.fill_rate(), Some(FillRate { used: 7, capacity: 12 }));
    lengths.flush().unwrap();
    assert_eq!(lengths.fill_rate(), Some(FillRate { used: 10, capacity: 15 }));
    assert_eq!(bucketer(Bucketing::nearest([1.0]).batch_size(1)).fill_rate(), None);
}

proptest! {
    #[test]
    fn every_item_is_emitted_once_within_bounds_and_after_any_resume(
        items in prop::collection::vec(0u32..90, 0..60),
        boundaries in prop::collection::btree_set(1u32..90, 0..5),
        size in prop::option::of(1usize..6),
        budget in prop::option::of(1u64..200),
        alone: bool,
        drop_last: bool,
    ) {
        prop_assume!(size.is_some() || budget.is_some());
        let mut bucketing = Bucketing::boundaries(boundaries.iter().map(|&b| f64::from(b)));
        if let Some(size) = size {
            bucketing = bucketing.batch_size(size);
        }
        if let Some(budget) = budget {
            bucketing = bucketing.budget(budget);
        }
        if alone {
            bucketing = bucketing.long_items_alone();
        }
        if drop_last {
            bucketing = bucketing.drop_last();
        }
        let items: Vec<f64> = items.into_iter().map(f64::from).collect();
        let epoch = run_and_resume(|| bucketer(bucketing.clone()), &items);
        let too_long = |length: f64| budget.is_some_and(|budget| length > budget as f64);
        prop_assert!(epoch.rejected.iter().all(|&index| too_long(items[index]) && !alone));
        let max = size.unwrap_or(usize::MAX).min(budget.map_or(usize::MAX, |b| b as usize));
        prop_assert!(epoch.max_held <= bucketing.buckets() * max);
        let (mut used, mut capacity) = (0.0, 0.0);
        for output in &epoch.emitted {
            let batch = &output.aggregate.items;
            let members: Vec<f64> = output.members.iter().map(|&index| items[index]).collect();
            prop_assert_eq!(batch, &members);
            prop_assert!(output.members.is_sorted());
            let bucket = output.aggregate.bucket;
            prop_assert!(batch.iter().all(|&key| bucketing.bucket_of(key) == bucket));
            let padded = batch.iter().fold(1.0, |a, &b| b.max(a)) * batch.len() as f64;
            prop_assert!(batch.len() <= size.unwrap_or(usize::MAX));
            prop_assert!(batch.len() == 1 || budget.is_none_or(|budget| padded <= budget as f64));
            used += batch.iter().map(|&key| f64::max(key, 1.0)).sum::<f64>();
            capacity += padded;
        }
        let mut again = bucketer(bucketing);
        for &item in &items {
            let mut answer = again.accumulate(item).unwrap_or(None);
            while answer.is_some() {
                answer = again.more().unwrap();
            }
        }
        let mut answer = again.flush().unwrap();
        while answer.is_some() {
            answer = again.flush_more().unwrap();
        }
        let rate = again.fill_rate().unwrap();
        prop_assert_eq!((rate.used as f64, rate.capacity as f64), (used, capacity));
    }
}
