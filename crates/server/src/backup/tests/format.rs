//! bbolt's format: what is written is read, and what is altered is refused.

use std::collections::BTreeMap;
use std::io::Cursor;

use proptest::prelude::*;

use super::{Contents, contents, database};
use crate::backup::page::{self, PAGE_SIZE};
use crate::backup::read::{BadDatabase, Bucket, Database};

fn any_contents(most: usize) -> impl Strategy<Value = Contents> {
    let value = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..60),
        1 => prop::collection::vec(any::<u8>(), 3000..9000),
    ];
    prop::collection::btree_map(prop::collection::vec(any::<u8>(), 1..40), value, 0..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read_again(a in any_contents(400), b in any_contents(3)) {
        let read = contents(&database(&[("a", &a), ("b", &b), ("empty", &Contents::new())])).unwrap();
        prop_assert_eq!(read, BTreeMap::from([("a".into(), a), ("b".into(), b), ("empty".into(), Contents::new())]));
    }

    #[test]
    fn no_alteration_makes_the_reader_fail_otherwise_than_by_an_error(
        a in any_contents(300),
        alterations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        header in any::<bool>(),
    ) {
        let mut bytes = database(&[("a", &a)]);
        for (place, byte) in alterations {
            // Most of a page is values, and what stands at its begin says where all is.
            let place = place.index(bytes.len());
            bytes[if header { place - place % PAGE_SIZE + place % 96 } else { place }] = byte;
        }
        let _either = contents(&bytes);
    }
}

#[test]
fn a_tree_has_as_many_levels_as_it_needs() {
    let keys: Contents = (0..200_000_u32).map(|n| (n.to_be_bytes().to_vec(), vec![])).collect();
    assert_eq!(contents(&database(&[("a", &keys)])).unwrap()["a"], keys);
}

/// What is wrong is told, and where.
#[test]
fn what_is_not_as_bbolt_writes_it_is_refused() {
    let keys: Contents = (0..2000_u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 20])).collect();
    let good = database(&[("a", &keys)]);
    let told = |bytes: &[u8]| contents(bytes).err().map(|error| error.to_string()).unwrap_or_default();
    let altered = |at: usize, with: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        told(&bytes)
    };
    assert_eq!(told(&good), "");
    for len in [0, 10, 100, 4096, good.len() / 2, good.len() - 1] {
        let said = told(&good[..len]);
        assert!(said.contains("truncated") || said.contains("ends within"), "{len}: {said}");
    }
    assert_eq!(told(&vec![b'x'; 9000]), "it is no bbolt database (no magic number)");
    // Either meta is enough, as in bbolt.
    assert_eq!([altered(20, &[1]), altered(4096 + 40, &[1])], ["", ""]);
    // The root's only element names the page of the bucket.
    let root = 3 * PAGE_SIZE + 16 + 16 + 1;
    let page = |n: u64| n.to_le_bytes();
    assert_eq!(altered(root, &page(1 << 40)), format!("page {} is damaged: it lies behind the last page", 1_u64 << 40));
    assert_eq!(altered(root, &page(3)), "page 3 is damaged: it is named twice, or free");
    let first = 4 * PAGE_SIZE;
    assert_eq!(altered(first, &page(9)), "page 4 is damaged: it says another number");
    assert_eq!(altered(first + 8, &[2, 0, 255, 255]), "page 4 is damaged: it has more elements than fit");
    assert_eq!(altered(first + 8, &[4]), "page 4 is damaged: it should be a branch or a leaf and is neither");
    assert_eq!(altered(first + 16, &[9]), "page 4 is damaged: an element has unknown flags");
    assert_eq!(altered(first + 20, &[255; 4]), "page 4 is damaged: an element lies outside of it, or over another one");
    assert_eq!(altered(first + 12, &[255; 4]), "page 4 is damaged: it goes on behind the last page");
    let key = good[first..].windows(4).position(|bytes| bytes == 1_u32.to_be_bytes()).unwrap();
    assert_eq!(altered(first + key, &[0; 4]), "page 4 is damaged: its keys are not in order");
    // The next leaf begins with a key that its branch names.
    let second = first + PAGE_SIZE;
    let key_of_second = second + 16 + u32::from_le_bytes(good[second + 20..second + 24].try_into().unwrap()) as usize;
    assert_eq!(altered(key_of_second, &[0; 4]), "page 5 is damaged: a key lies outside of what its branch says");
    assert!(altered(first + key, &[255; 4]).contains("a key lies outside of what its branch says"));
}

/// Buckets that fit stand in the root itself, as bbolt writes them.
#[test]
fn small_buckets_are_read_where_they_stand() {
    let mut page = page::header(0, page::LEAF, 1, 0).to_vec();
    for number in [0_u32, 16, 1, 2] {
        page.extend_from_slice(&number.to_le_bytes());
    }
    page.extend_from_slice(b"kvv");
    let bytes = database(&[("a", &Contents::new())]);
    let mut database = Database::open(Cursor::new(&bytes), bytes.len() as u64).unwrap();
    let mut seen = vec![];
    database
        .each(&Bucket::Inline(page.clone()), |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            Ok::<(), BadDatabase>(())
        })
        .unwrap();
    assert_eq!(seen, [(b"k".to_vec(), b"vv".to_vec())]);
    // Two that share bytes would show more than there is.
    let mut shared = page::header(0, page::LEAF, 2, 0).to_vec();
    for number in [0_u32, 32, 1, 3, 0, 17, 1, 0] {
        shared.extend_from_slice(&number.to_le_bytes());
    }
    shared.extend_from_slice(b"abcd");
    let said = database.each(&Bucket::Inline(shared), |_, _| Ok::<(), BadDatabase>(())).err();
    assert!(said.is_some_and(|error| error.to_string().contains("over another one")));
    for cut in 0..page.len() {
        let cut = Bucket::Inline(page[..cut].to_vec());
        assert!(database.each(&cut, |_, _| Ok::<(), BadDatabase>(())).is_err());
    }
}
