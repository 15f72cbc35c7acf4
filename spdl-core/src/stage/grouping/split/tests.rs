use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;
use crate::stage::grouping::law;

fn concat(capacity: u64, drop_last: bool) -> ConcatAndSplit<Vec<u16>> {
    ConcatAndSplit::new(capacity, drop_last).unwrap()
}

/// Items of these lengths, no two tokens alike.
fn items(lengths: &[u16]) -> Vec<Vec<u16>> {
    let mut next = 0;
    let item = |&length: &u16| {
        next += length;
        (next - length..next).collect()
    };
    lengths.iter().map(item).collect()
}

#[test]
fn an_item_longer_than_sequences_gives_several_at_once() {
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
    let rest = concat.flush().unwrap().unwrap();
    assert_eq!((&rest.items[0].part, rest.items[0].whole), (&vec![12], 11));
    assert_eq!((concat.inputs(), concat.carry()), (vec![1], 0));
    assert_eq!(concat.flush_more().unwrap(), None);
}

#[test]
fn items_that_cannot_be_cut_are_errors() {
    assert_eq!(concat(4, false).accumulate(vec![]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = ConcatAndSplit::<Vec<u8>>::new(0, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let mut concat = concat(4, false);
    concat.resume(3);
    let error = concat.accumulate(vec![1, 2, 3]).unwrap_err();
    assert!(error.message().contains("the data have changed"), "{error}");
    let next = concat.accumulate(vec![1, 2, 3, 4]).unwrap().unwrap();
    assert_eq!(next.items[0].offset, 0, "it was said of the first one only");
}

#[test]
fn nothing_is_lost_where_not_all_was_asked_for() {
    let mut concat = concat(4, false);
    concat.accumulate(items(&[13])[0].clone()).unwrap().unwrap();
    assert_eq!(concat.accumulate(vec![1]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let rest = std::iter::from_fn(|| concat.flush_more().unwrap());
    let lengths: Vec<u64> = rest.map(|full| full.used()).collect();
    assert_eq!(lengths, [4, 4, 1]);
}

#[test]
fn a_dropped_rest_is_counted_with_the_item_whose_beginning_went_out() {
    let epoch = law::holds(|| concat(4, true), &items(&[3, 2, 2]));
    assert_eq!((epoch.told.len(), epoch.left_out), (1, 2));
    assert_eq!(law::holds(|| concat(4, true), &items(&[3, 5])).left_out, 0);
}

#[test]
fn every_kind_of_sequence_is_cut_alike() {
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
fn pieces_are_the_item() {
    let cut = |item: Vec<u8>, longest| pieces(item, longest).collect::<Result<Vec<_>>>();
    let parts = |item, longest| -> Vec<(u64, Vec<u8>)> {
        cut(item, longest).unwrap().into_iter().map(|piece| (piece.offset, piece.part)).collect()
    };
    assert_eq!(parts(vec![1, 2, 3, 4, 5], 2), [(0, vec![1, 2]), (2, vec![3, 4]), (4, vec![5])]);
    assert_eq!(parts(vec![1, 2, 3, 4], 2), [(0, vec![1, 2]), (2, vec![3, 4])]);
    assert_eq!(parts(vec![1, 2], 2), [(0, vec![1, 2])]);
    assert_eq!(parts(vec![1, 2], u64::MAX), [(0, vec![1, 2])]);
    assert_eq!(parts(vec![], 2), []);
    assert_eq!(cut(vec![1], 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

proptest! {
    #[test]
    fn the_stream_comes_out_once_and_in_order_from_any_point_on(
        lengths in prop::collection::vec(0u16..30, 0..40),
        capacity in 1u64..20,
        drop_last: bool,
    ) {
        let items = items(&lengths);
        let epoch = law::holds(|| concat(capacity, drop_last), &items);
        prop_assert!(epoch.refused.iter().all(|&place| items[place].is_empty()));
        prop_assert!(epoch.most_held as u64 <= capacity);
        let total: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        let mut stream = Vec::new();
        for (number, told) in epoch.told.iter().enumerate() {
            let full = &told.aggregate;
            let rest = number as u64 == total / capacity;
            prop_assert!(full.used() == capacity || rest && full.used() == total % capacity);
            let ends = full.items.iter().filter(|piece| piece.is_last()).count();
            prop_assert_eq!(ends, told.members.len());
            for (piece, length) in full.items.iter().zip(full.lengths()) {
                prop_assert_eq!(piece.tokens(), length);
                prop_assert!(length > 0);
                stream.extend_from_slice(&piece.part);
            }
        }
        let whole: Vec<u16> = items.concat();
        let cut = if drop_last { total - total % capacity } else { total };
        prop_assert_eq!(&stream[..], &whole[..cut as usize]);
    }
}
