//! Messages as JSON, by protobuf's rules and with etcd's options: fields have their names of the `.proto` files, those that
//! are not set are left out, and unknown ones are ignored.

use std::sync::LazyLock;

use bytes::Bytes;
use eddy_proto::DESCRIPTORS;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, ReflectMessage, SerializeOptions,
};
use serde::Serialize;
use serde::de::DeserializeSeed;
use tonic::{Code, Status};

use super::once::Once;

const READ: DeserializeOptions = DeserializeOptions::new().deny_unknown_fields(false);
const WRITE: SerializeOptions = SerializeOptions::new().use_proto_field_name(true);

/// All messages; read when the first request comes, so that who never asks does not pay for them.
static POOL: LazyLock<Option<DescriptorPool>> = LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).ok());

/// The descriptors of all messages. A test shows that they can be read.
pub(super) fn pool() -> Option<&'static DescriptorPool> {
    POOL.as_ref()
}

/// The text of a status, as the gateway's errors have it.
#[derive(Serialize)]
struct Error<'a> {
    code: i32,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
}

impl<'a> Error<'a> {
    fn of(status: &'a Status) -> Self {
        Self { code: status.code().into(), message: status.message() }
    }
}

/// One line of a stream.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Line<'a> {
    Result(Written<'a>),
    Error(Error<'a>),
}

/// A message that is written with our options.
struct Written<'a>(&'a DynamicMessage);

impl Serialize for Written<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize_with_options(serializer, &WRITE)
    }
}

/// Reads a message from JSON, and encodes it.
///
/// # Errors
/// INVALID_ARGUMENT when it is not JSON or not such a message.
pub(super) fn read(kind: &MessageDescriptor, text: &[u8]) -> Result<Bytes, Status> {
    let refused = |error: serde_json::Error| malformed(&error.to_string());
    Once(kind).deserialize(&mut serde_json::Deserializer::from_slice(text)).map_err(refused)?;
    let mut reader = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize_with_options(kind.clone(), &mut reader, &READ).map_err(refused)?;
    Ok(message.encode_to_vec().into())
}

/// The status of text that is not a message.
pub(super) fn malformed(why: &str) -> Status {
    Status::invalid_argument(format!("proto: {why}"))
}

fn decoded(kind: &MessageDescriptor, message: Bytes) -> Result<DynamicMessage, Status> {
    DynamicMessage::decode(kind.clone(), message).map_err(|error| Status::internal(error.to_string()))
}

fn text(of: &impl Serialize) -> Result<Vec<u8>, Status> {
    serde_json::to_vec(of).map_err(|error| Status::internal(error.to_string()))
}

/// Writes an encoded message as JSON.
///
/// # Errors
/// INTERNAL when it is not such a message.
pub(super) fn write(kind: &MessageDescriptor, message: Bytes) -> Result<Bytes, Status> {
    let message = decoded(kind, message)?;
    debug_assert_eq!(&message.descriptor(), kind);
    text(&Written(&message)).map(Bytes::from)
}

/// Writes an encoded message as a line of a stream.
///
/// # Errors
/// INTERNAL when it is not such a message.
pub(super) fn line(kind: &MessageDescriptor, message: Bytes) -> Result<Bytes, Status> {
    let message = decoded(kind, message)?;
    text(&Line::Result(Written(&message))).map(ended)
}

/// Writes a failure.
pub(super) fn error(status: &Status) -> Bytes {
    text(&Error::of(status)).unwrap_or_else(|_| unwritable()).into()
}

/// Writes a failure as the last line of a stream.
pub(super) fn error_line(status: &Status) -> Bytes {
    ended(text(&Line::Error(Error::of(status))).unwrap_or_else(|_| unwritable()))
}

fn unwritable() -> Vec<u8> {
    format!("{{\"code\":{}}}", i32::from(Code::Internal)).into_bytes()
}

fn ended(mut line: Vec<u8>) -> Bytes {
    line.push(b'\n');
    line.into()
}

#[cfg(test)]
mod tests {
    use eddy_proto::etcdserverpb::{RangeRequest, TxnRequest, WatchResponse, request_op};
    use eddy_proto::mvccpb;

    use super::*;

    fn kind(name: &str) -> MessageDescriptor {
        pool().unwrap().get_message_by_name(&format!("etcdserverpb.{name}")).unwrap()
    }

    fn range(text: &str) -> Result<RangeRequest, String> {
        let encoded = read(&kind("RangeRequest"), text.as_bytes()).map_err(|status| status.message().to_owned())?;
        Ok(RangeRequest::decode(encoded).unwrap())
    }

    #[test]
    fn protobufs_json_is_read() {
        let expected =
            RangeRequest { key: "foo".into(), range_end: "\0".into(), limit: 7, sort_order: 2, ..Default::default() };
        for text in [
            r#"{"key":"Zm9v","range_end":"AA==","limit":"7","sort_order":"DESCEND"}"#,
            r#"{"key":"Zm9v","rangeEnd":"AA","limit":7,"sortOrder":2}"#,
            r#" {"key":"Zm9v","range_end":"AA==","limit":7.0,"sort_order":2,"new":{"a":[null]},"revision":null} "#,
        ] {
            assert_eq!(range(text), Ok(expected.clone()), "{text}");
        }
        // Both alphabets of base64, as in Go.
        assert_eq!(range(r#"{"key":"_-8="}"#), range(r#"{"key":"/+8="}"#));
        // An enum's name that is not known counts as unknown.
        assert_eq!(range(r#"{"key":"Zm9v","sort_order":"NOPE"}"#).unwrap().sort_order, 0);
    }

    #[test]
    fn what_is_no_such_message_is_refused() {
        for text in [
            "",
            "null",
            "[1]",
            "7",
            "{",
            r#"{"key":"Zm9v"#,
            r#"{"key":5}"#,
            r#"{"key":"***"}"#,
            r#"{"limit":"x"}"#,
            r#"{"limit":1.5}"#,
            r#"{"limit":"9223372036854775808"}"#,
            r#"{"serializable":"true"}"#,
            r#"{"sort_order":{}}"#,
            r#"{"key":"Zm9v","key":"Zm9v"}"#,
            r#"{"range_end":"Zw==","rangeEnd":null}"#,
        ] {
            assert!(range(text).is_err(), "{text}");
        }
        let open = r#"{"success":[{"request_txn":"#;
        let deep = format!("{}{{}}{}", open.repeat(50_000), "}]}".repeat(50_000));
        let refused = read(&kind("TxnRequest"), deep.as_bytes()).unwrap_err();
        assert!(refused.message().contains("recursion limit"), "{refused}");
        let two = br#"{"success":[{"request_put":{},"request_range":{}}]}"#;
        assert!(read(&kind("TxnRequest"), two).is_err(), "two steps in one");
        let twice = br#"{"success":[{"request_put":{"key":"YQ==","key":"YQ=="}}]}"#;
        assert!(read(&kind("TxnRequest"), twice).is_err(), "one field twice");
        // What is ignored may be anything.
        assert!(range(r#"{"new":1,"new":{"a":1,"a":2}}"#).is_ok());
        assert!(range(&format!("{{\"new\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000))).is_ok());
    }

    #[test]
    fn a_transaction_is_read_whole() {
        let text = br#"{"compare":[{"key":"Zm9v","target":"VALUE","value":"YmFy"}],
            "success":[{"request_put":{"key":"Zm9v","value":"YmFy"}}], "failure":[{"requestRange":{"key":"Zm9v"}}]}"#;
        let txn = TxnRequest::decode(read(&kind("TxnRequest"), text).unwrap()).unwrap();
        assert_eq!((txn.compare.len(), txn.compare[0].target), (1, 3));
        assert!(matches!(txn.success[0].request, Some(request_op::Request::RequestPut(_))));
        assert!(matches!(txn.failure[0].request, Some(request_op::Request::RequestRange(_))));
    }

    #[test]
    fn answers_leave_out_what_is_not_set() {
        let event = |kind: i32| mvccpb::Event {
            r#type: kind,
            kv: Some(mvccpb::KeyValue { key: "foo".into(), create_revision: 2, lease: -1, ..Default::default() }),
            prev_kv: None,
        };
        let response =
            WatchResponse { watch_id: 1, created: true, events: vec![event(0), event(1)], ..Default::default() };
        let line = line(&kind("WatchResponse"), response.encode_to_vec().into()).unwrap();
        assert_eq!(
            std::str::from_utf8(&line).unwrap(),
            concat!(
                r#"{"result":{"watch_id":"1","created":true,"events":[{"kv":{"key":"Zm9v","create_revision":"2","#,
                r#""lease":"-1"}},{"type":"DELETE","kv":{"key":"Zm9v","create_revision":"2","lease":"-1"}}]}}"#,
                "\n"
            )
        );
        let status = Status::not_found("no \"such\" thing");
        assert_eq!(error(&status), r#"{"code":5,"message":"no \"such\" thing"}"#);
        assert_eq!(error_line(&status), "{\"error\":{\"code\":5,\"message\":\"no \\\"such\\\" thing\"}}\n");
    }
}
