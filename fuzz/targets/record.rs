//! Records and heads, as they are read from a disk: what can be read is written back as it was meant.

use bytes::Bytes;
use eddy_crdt::{Head, Record};

use super::input::seal;

pub fn run(data: &[u8]) {
    let raw = Bytes::copy_from_slice(data);
    assert!(Record::decode(raw.clone()).is_err() || raw.len() > 9, "a record without a checksum");
    assert!(Head::decode(&raw).is_err() || raw.len() > 9, "a head without a checksum");
    let sealed = seal(data);
    if let Ok(record) = Record::decode(sealed.clone()) {
        let again = Record::decode(record.encode()).expect("a record that was written here");
        assert_eq!(again, record);
        assert!(record.effective().count() <= record.changes.len() + record.outcomes.len());
        assert_eq!(record.entry().is_some(), record.head.is_some());
    }
    if let Ok(head) = Head::decode(&sealed) {
        let again = Head::decode(&head.encode()).expect("a head that was written here");
        assert_eq!(again, head);
    }
}
