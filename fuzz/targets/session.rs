//! Long stories of two members: writes, messages that are lost, doubled, altered or made up, streams that break, snapshots.
//!
//! While nothing was altered or made up, both must end with the same.

use eddy_crdt::{
    Alarm, AlarmKind, Command, DeleteOp, Input as To, Key, KeyRange, LeaseId, PutLease, PutOp, PutValue, ReplicaId,
};

use super::input::{Input, seal};
use super::pair::Pair;

/// The most steps of one story.
const STEPS_MAX: usize = 48;

/// Length of the checksum field at the end of a message, bytes.
const CHECKSUM_LEN: usize = 9;

const KEYS: &[&str] = &["a", "b", "/registry/pods/d/a", "/registry/leases/d/b"];

const OBJECTS: &[&str] = &[
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u1","labels":{"x":"1"}},"spec":{"nodeName":"n"}}"#,
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u1","labels":{"y":"1"}},"spec":{},"status":{}}"#,
    r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u2","finalizers":["a"]},"spec":{"nodeName":"m"}}"#,
    "k8s\0protobuf",
];

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut pair = Pair::new(2 + usize::from(input.byte() % 2));
    let mut is_forged = false;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        is_forged |= step(&mut pair, &mut input);
    }
    pair.come_back();
    if !is_forged {
        converge(&mut pair);
        pair.come_back();
    }
}

/// One step of the story. Tells whether something was altered or made up.
fn step(pair: &mut Pair, input: &mut Input<'_>) -> bool {
    let kind = input.byte();
    let side = usize::from(kind >> 7);
    match kind % 16 {
        0..=2 => write(pair, side, input),
        3..=5 => pair.step(10),
        6 => pair.step(100 * (1 + u64::from(input.byte()))),
        7 => drop(pair.sides[side].inbox.pop_front()),
        8 => {
            let inbox = &mut pair.sides[side].inbox;
            if inbox.len() < 16
                && let Some(first) = inbox.front().cloned()
            {
                inbox.push_back(first);
            }
        }
        9 => pair.sides[side].inbox.rotate_left(usize::from(pair.sides[side].inbox.len() > 1)),
        10 => pair.connect(),
        11 => {
            pair.begin_anew(side);
            pair.connect();
        }
        12 => {
            let len = usize::from(input.byte());
            pair.deliver(0, seal(input.take(len)));
            return true;
        }
        _ => return alter(pair, input),
    }
    false
}

/// Alters the next message on its way to side 0.
fn alter(pair: &mut Pair, input: &mut Input<'_>) -> bool {
    let Some(bytes) = pair.sides[0].inbox.pop_front() else { return false };
    let mut body = bytes[..bytes.len().saturating_sub(CHECKSUM_LEN)].to_vec();
    let (how, at, value) = (input.byte(), input.short(), input.byte());
    let at = at % (body.len() + 1);
    match how % 4 {
        0 if at < body.len() => body[at] = value,
        1 => body.truncate(at),
        2 => body.insert(at, value),
        _ => {
            let piece = input.take(usize::from(value % 32));
            let end = (at + piece.len()).min(body.len());
            body.splice(at..end, piece.iter().copied());
        }
    }
    pair.sides[0].inbox.push_front(seal(&body));
    true
}

/// A client writes something at that side.
fn write(pair: &mut Pair, side: usize, input: &mut Input<'_>) {
    let (what, value) = (input.byte(), input.byte());
    let key = Key::from_static(KEYS[usize::from(what >> 4) % KEYS.len()].as_bytes());
    let lease = LeaseId::new(1 + i64::from(value % 2));
    let set = |value: Vec<u8>, lease| {
        Command::Put(PutOp {
            key: key.clone(),
            value: PutValue::Set(value.into()),
            lease: PutLease::Set(lease),
            prev_kv: false,
        })
    };
    let command = match what % 10 {
        0 | 1 => set(vec![value], None),
        2 => set([vec![b'x'; 150], vec![value; 3]].concat(), None),
        3 | 4 => set(OBJECTS[usize::from(value) % OBJECTS.len()].into(), None),
        5 => Command::Delete(DeleteOp { range: KeyRange::Key(key), prev_kv: false }),
        6 => Command::LeaseGrant { id: lease, ttl: i64::from(value) },
        7 => set(vec![value], Some(lease)),
        8 => Command::LeaseRevoke(lease),
        _ => {
            let alarm = Alarm { member: ReplicaId::new(1 + u64::from(value % 2)), kind: AlarmKind::NoSpace };
            Command::SetAlarm { alarm, raised: value & 4 == 0 }
        }
    };
    pair.handle(side, To::Client(command));
}

/// Nobody disturbs them any more.
fn converge(pair: &mut Pair) {
    for round in 0..400 {
        if pair.converged() {
            return;
        }
        if !pair.is_connected() || round == 100 || round == 200 {
            pair.connect();
        }
        pair.step(if round % 4 == 3 { 1_000 } else { 20 });
    }
    let vectors = pair.sides.each_ref().map(|side| side.replica.vector().clone());
    panic!("both were left alone and differ: {vectors:?}");
}
