use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;
use crate::stage::grouping::resume_check::run_and_resume;

fn concat(capacity: u64, drop_last: bool) -> ConcatAndSplit<Vec<u16>> {
    ConcatAndSplit::new(capacity, drop_last).unwrap()
}

/// Items of these lengths; all tokens differ.
fn items(lengths: &[u16]) -> Vec<Vec<u16>> {
    let mut next = 0;
    let item = |&length: &u16| {
        next += length;
        (next - length..next).collect()
    };
    lengths.iter().map(item).collect()
}

#[test]
fn an_item_longer_than_a_sequence_completes_several() {
    let mut concat = concat(4, false);
    let items = items(&[2, 11]);
    assert_eq!(concat.accumulate(items[0].clone()).unwrap(), None);
    let mut answer = concat.accumulate(items[1].clone()).unwrap();
    let mut seen = Vec::new();
    while let Some(full) = answer {
        let offsets: Vec<u64> = full.items.iter().map(|piece| piece.offset).collect();
        let last: Vec<bool> = full.items.iter().map(Piece::is_last).collect();
        seen.push((offsets, last, concat.inputs(), concat.carry()));
        answer = concat.more().unwrap();
    }
    let expected = [
        (vec![0, 0], vec![true, false], vec![0], 2),
        (vec![2], vec![false], vec![], 6),
        (vec![6], vec![false], vec![], 10),
    ];
    assert_eq!(seen, expected);
    let last = concat.flush().unwrap().unwrap();
    assert_eq!((&last.items[0].part, last.items[0].whole), (&vec![12], 11));
    assert_eq!((concat.inputs(), concat.carry()), (vec![1], 0));
    assert_eq!(concat.flush_more().unwrap(), None);
}

#[test]
fn items_that_cannot_be_split_are_errors() {
    assert_eq!(concat(4, false).accumulate(vec![]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = ConcatAndSplit::<Vec<u8>>::new(0, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let mut concat = concat(4, false);
    concat.resume(3);
    let error = concat.accumulate(vec![1, 2, 3]).unwrap_err();
    assert!(error.message().contains("the data have changed"), "{error}");
    let next = concat.accumulate(vec![1, 2, 3, 4]).unwrap().unwrap();
    assert_eq!(next.items[0].offset, 0, "the carry applies to the first item only");
}

#[test]
fn skipping_more_is_an_error_and_loses_no_tokens() {
    let mut concat = concat(4, false);
    concat.accumulate(items(&[13])[0].clone()).unwrap().unwrap();
    assert_eq!(concat.accumulate(vec![1]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let flushed = std::iter::from_fn(|| concat.flush_more().unwrap());
    let lengths: Vec<u64> = flushed.map(|sequence| sequence.used()).collect();
    assert_eq!(lengths, [4, 4, 1]);
}

#[test]
fn items_that_end_in_a_dropped_last_sequence_are_counted() {
    let epoch = run_and_resume(|| concat(4, true), &items(&[3, 2, 2]));
    assert_eq!((epoch.emitted.len(), epoch.left_out), (1, 2));
    assert_eq!(run_and_resume(|| concat(4, true), &items(&[3, 5])).left_out, 0);
}

#[test]
fn all_sequence_types_split_alike() {
    fn check<T: Sequence + PartialEq + std::fmt::Debug>(make: impl Fn(&[u8]) -> T) {
        let whole = make(b"abcdef");
        assert_eq!(whole.tokens(), 6);
        assert_eq!(whole.slice(2..5), make(b"cde"));
        assert_eq!(whole.slice(6..6), make(b""));
    }
    check(|bytes| bytes.to_vec());
    check(|bytes| -> Arc<[u8]> { bytes.into() });
    check(bytes::Bytes::copy_from_slice);
    let whole = bytes::Bytes::from_static(b"abcdef");
    assert_eq!(Sequence::slice(&whole, 2..5).as_ptr(), whole[2..].as_ptr(), "memory is shared");
}

#[test]
fn pieces_concatenate_to_the_item() {
    let split = |item: Vec<u8>, longest| pieces(item, longest).collect::<Result<Vec<_>>>();
    let parts = |item, longest| -> Vec<(u64, Vec<u8>)> {
        split(item, longest).unwrap().into_iter().map(|piece| (piece.offset, piece.part)).collect()
    };
    assert_eq!(parts(vec![1, 2, 3, 4, 5], 2), [(0, vec![1, 2]), (2, vec![3, 4]), (4, vec![5])]);
    assert_eq!(parts(vec![1, 2, 3, 4], 2), [(0, vec![1, 2]), (2, vec![3, 4])]);
    assert_eq!(parts(vec![1, 2], 2), [(0, vec![1, 2])]);
    assert_eq!(parts(vec![1, 2], u64::MAX), [(0, vec![1, 2])]);
    assert_eq!(parts(vec![], 2), []);
    assert_eq!(split(vec![1], 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

proptest! {
    #[test]
    fn every_token_is_emitted_once_in_order_and_after_any_resume(
        lengths in prop::collection::vec(0u16..30, 0..40),
        capacity in 1u64..20,
        drop_last: bool,
    ) {
        let items = items(&lengths);
        let epoch = run_and_resume(|| concat(capacity, drop_last), &items);
        prop_assert!(epoch.rejected.iter().all(|&index| items[index].is_empty()));
        prop_assert!(epoch.max_held as u64 <= capacity);
        let total: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        let mut stream = Vec::new();
        for (number, output) in epoch.emitted.iter().enumerate() {
            let full = &output.aggregate;
            let last = number as u64 == total / capacity;
            prop_assert!(full.used() == capacity || last && full.used() == total % capacity);
            let ends = full.items.iter().filter(|piece| piece.is_last()).count();
            prop_assert_eq!(ends, output.members.len());
            for (piece, length) in full.items.iter().zip(full.lengths()) {
                prop_assert_eq!(piece.tokens(), length);
                prop_assert!(length > 0);
                stream.extend_from_slice(&piece.part);
            }
        }
        let whole: Vec<u16> = items.concat();
        let emitted = if drop_last { total - total % capacity } else { total };
        prop_assert_eq!(&stream[..], &whole[..emitted as usize]);
    }
}
