//! Requests of etcd's API as protobuf: checked, translated, run on a replica of one, and answered.
//!
//! A replica that took them must come back the same from its journal.

use std::collections::BTreeMap;

use bytes::Bytes;
use eddy_crdt::{
    Birth, ClusterId, Command, Founder, Genesis, Identity, Input as To, LeaseId, Loader, Now, PastValues, Replica,
    ReplicaId, Reply,
};
use eddy_proto::etcdserverpb as pb;
use eddy_server::api::limits::{RequestLimits, WriteLimit};
use eddy_server::api::{check, convert, header};
use eddy_server::config::Config;
use prost::Message;

use super::input::Input;

/// The most requests of one input.
const REQUESTS_MAX: usize = 8;

struct World {
    replica: Replica,
    records: BTreeMap<u64, Bytes>,
    ms: u64,
}

/// Each request is a byte for its kind, its length in two, and its bytes.
pub fn run(data: &[u8]) {
    let mut world = World::new();
    let mut input = Input::new(data);
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        let (kind, len) = (input.byte(), input.short());
        world.request(kind, Bytes::copy_from_slice(input.take(len)));
    }
    world.comes_back();
}

/// The message, which is the same when it is written again.
fn read<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: Bytes) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let again = M::decode(Bytes::from(message.encode_to_vec())).expect("a request that was written here");
    assert!(again == message, "{message:?}");
    Some(message)
}

fn identity() -> Identity {
    Identity { cluster: ClusterId::new(0xc1), replica: ReplicaId::new(1), birth: Birth::new(1), ordinal: 0 }
}

impl World {
    fn new() -> Self {
        let founder = Founder { id: ReplicaId::new(1), name: "n".to_owned(), peer_urls: vec![] };
        let genesis = Genesis { founders: vec![founder], ..Genesis::default() };
        let (replica, effects) = Replica::found(identity(), &genesis);
        let records = (1..).zip(effects.records).collect();
        let mut world = Self { replica, records, ms: 1 };
        for (key, value) in [("a", "1"), ("b", "2"), ("b/c", ""), ("a", "3")] {
            let put = pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() };
            world.command(Command::Put(convert::put(put)));
        }
        world
    }

    fn now(&self) -> Now {
        Now { wall_ms: 1_800_000_000_000 + self.ms, mono_ms: self.ms }
    }

    fn command(&mut self, command: Command) -> Option<Reply> {
        self.ms += 400;
        let now = self.now();
        let effects = self.handle(now, To::Client(command));
        if self.replica.next_tick_ms().is_some_and(|ms| ms <= self.ms) {
            self.handle(now, To::Tick);
        }
        effects
    }

    fn handle(&mut self, now: Now, input: To) -> Option<Reply> {
        let first = self.replica.next_number();
        let effects = self.replica.handle(now, input);
        self.records.extend((first..).zip(effects.records));
        effects.reply.and_then(Result::ok)
    }

    fn request(&mut self, kind: u8, bytes: Bytes) {
        let limits = RequestLimits::default();
        let writes = WriteLimit::new(&limits, ReplicaId::new(1));
        let max_ops = Config::default().max_txn_ops as usize;
        let command = match kind % 8 {
            0 => return self.range(bytes),
            1 => read(bytes)
                .filter(|put| check::put(put).is_ok() && writes.admit(put).is_ok())
                .map(convert::put)
                .map(Command::Put),
            2 => read(bytes).filter(|delete| check::delete(delete).is_ok()).map(convert::delete).map(Command::Delete),
            3 | 4 => read(bytes).filter(|txn| check::txn(txn, max_ops).is_ok()).map(convert::txn).map(Command::Txn),
            5 => read(bytes).map(|compact: pb::CompactionRequest| Command::Compact(compact.revision)),
            6 => read(bytes).and_then(|grant: pb::LeaseGrantRequest| {
                Some(Command::LeaseGrant { id: LeaseId::from_wire(grant.id)?, ttl: grant.ttl })
            }),
            _ => read(bytes).and_then(|lease: pb::LeaseRevokeRequest| {
                let id = LeaseId::from_wire(lease.id)?;
                Some(if lease.id % 2 == 0 { Command::LeaseRevoke(id) } else { Command::LeaseRenew(id) })
            }),
        };
        let Some(command) = command else { return };
        if let Command::Txn(txn) = &command
            && txn.is_read_only()
        {
            let mut tally = eddy_crdt::Tally::default();
            let before = self.replica.state_hash();
            if let Ok(reply) = self.replica.read_txn(txn, self.replica.revision(), &mut tally, &PastValues::default()) {
                self.answer(Reply::Txn(reply));
            }
            assert_eq!(self.replica.state_hash(), before);
            return;
        }
        if let Some(reply) = self.command(command) {
            self.answer(reply);
        }
    }

    fn range(&self, bytes: Bytes) {
        let Some(request) = read::<pb::RangeRequest>(bytes).filter(|range| check::range(range).is_ok()) else { return };
        let (limit, op) = (request.limit, convert::range(request));
        let Ok(reply) = self.replica.range(&op, self.replica.revision(), &PastValues::default()) else { return };
        assert!(limit <= 0 || reply.kvs.len() as i64 <= limit);
        assert!(reply.kvs.len() as i64 <= reply.count.max(0));
        same(&convert::range_response(reply, self.header()));
    }

    fn header(&self) -> pb::ResponseHeader {
        header::at(&identity(), self.replica.revision())
    }

    fn answer(&self, reply: Reply) {
        let header = self.header();
        match reply {
            Reply::Put(reply) => same(&convert::put_response(reply, header)),
            Reply::Delete(reply) => same(&convert::delete_response(reply, header)),
            Reply::Txn(reply) => same(&convert::txn_response(reply, header)),
            Reply::LeaseGrant { ttl, .. } => assert!(ttl > 0, "a lease of {ttl} s"),
            _ => {}
        }
    }

    fn comes_back(&self) {
        let head = self.replica.head().encode();
        let mut loader = Loader::new(Some(&head)).expect("the head of this replica");
        for (number, record) in &self.records {
            loader.record(*number, record.clone()).expect("a record of this replica");
        }
        let mut again = |number| self.records.get(&number).cloned();
        let restored = loader.finish(self.now(), identity(), &mut again).expect("the journal of this replica");
        assert_eq!(restored.state_hash(), self.replica.state_hash());
        assert_eq!(restored.revision(), self.replica.revision());
    }
}

/// An answer is the same when a client reads it.
fn same<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M) {
    let again = M::decode(Bytes::from(message.encode_to_vec())).expect("an answer that was written here");
    assert!(again == *message, "{message:?}");
}
