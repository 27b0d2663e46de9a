//! One message of a peer: read, written again, and received in each stage of a session.

use bytes::Bytes;
use eddy_crdt::sync::Message;
use eddy_crdt::{Command, Input as To, Key, PutLease, PutOp, PutValue};

use super::input::seal;
use super::pair::Pair;

/// How many situations there are for a message to arrive in.
pub const SITUATIONS: u8 = 4;

/// A put of a client.
pub fn put(key: &'static str, value: impl Into<Bytes>) -> To {
    let value = PutValue::Set(value.into());
    let key = Key::from_static(key.as_bytes());
    To::Client(Command::Put(PutOp { key, value, lease: PutLease::Set(None), prev_kv: false }))
}

/// What has happened when the message arrives: nothing; both know each other; this side reads a snapshot, or gives one.
pub fn situation(number: u8) -> Pair {
    // A third member that is away keeps the log from being settled.
    let mut pair = Pair::new(2 + usize::from(number >> 4) % 2);
    pair.handle(0, put("a", "1"));
    pair.handle(1, put("b", "2"));
    let number = number % SITUATIONS;
    if number == 2 || number == 3 {
        pair.begin_anew(usize::from(number == 3));
        pair.connect();
    }
    if number > 0 {
        pair.step(10);
    }
    if number == 1 {
        pair.step(10);
        pair.handle(0, put("a", vec![b'a'; 200]));
    }
    pair
}

/// The first byte is the situation, the rest the message without its checksum.
pub fn run(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    // Nothing but a checksum makes bytes a message.
    drop(Message::decode(Bytes::copy_from_slice(body)));
    let sealed = seal(body);
    let Ok(message) = Message::decode(sealed.clone()) else { return };
    assert!(!message.name().is_empty());
    assert_eq!(Message::decode(message.encode()), Ok(message));
    let mut pair = situation(*first);
    pair.deliver(0, sealed);
    for ms in [10, 200, 6_000] {
        pair.step(ms);
    }
    pair.come_back();
}
