//! What of an HTTP request's head becomes metadata of the call, and what of the answer's metadata becomes headers.

use std::net::SocketAddr;
use std::time::Duration;

use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use tonic::Status;

/// Headers that begin so are metadata, in both directions.
const PREFIX: &str = "grpc-metadata-";

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The names that gRPC itself sets: a client's metadata must not.
const RESERVED: [&str; 8] = [
    "content-type",
    "user-agent",
    "grpc-message-type",
    "grpc-encoding",
    "grpc-message",
    "grpc-status",
    "grpc-timeout",
    "te",
];

/// The metadata of a call.
pub(super) fn of_request(head: &Parts, remote: Option<SocketAddr>) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    for (name, value) in &head.headers {
        let readable = value.as_bytes().iter().all(|byte| (0x20..0x7f).contains(byte));
        let own = name.as_str().strip_prefix(PREFIX).filter(|own| !RESERVED.contains(own) && readable);
        if let Some(own) = own.and_then(|own| HeaderName::from_bytes(own.as_bytes()).ok()) {
            metadata.append(own, value.clone());
        }
    }
    if let Some(token) = head.headers.get(AUTHORIZATION) {
        metadata.insert(AUTHORIZATION, token.clone());
    }
    let authority = || HeaderValue::from_str(head.uri.authority()?.as_str()).ok();
    let given = head.headers.get(&FORWARDED_HOST).or_else(|| head.headers.get(HOST)).cloned();
    if let Some(host) = given.or_else(authority) {
        metadata.insert(FORWARDED_HOST, host);
    }
    let before = head.headers.get_all(&FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let senders: Vec<String> =
        before.map(str::to_owned).chain(remote.map(|address| address.ip().to_string())).collect();
    if let Ok(senders) = HeaderValue::from_str(&senders.join(", "))
        && !senders.is_empty()
    {
        metadata.insert(FORWARDED_FOR, senders);
    }
    metadata
}

/// How long the call may take, if the request says so.
///
/// # Errors
/// INVALID_ARGUMENT when that is not a time as gRPC writes it.
pub(super) fn timeout(head: &Parts) -> Result<Option<Duration>, Status> {
    let Some(value) = head.headers.get("grpc-timeout") else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes());
    let read = || {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let number: u32 = number.parse().ok()?;
        let unit = match unit {
            "H" => Duration::from_secs(3600),
            "M" => Duration::from_secs(60),
            "S" => Duration::from_secs(1),
            "m" => Duration::from_millis(1),
            "u" => Duration::from_micros(1),
            "n" => Duration::from_nanos(1),
            _ => return None,
        };
        Some(unit.saturating_mul(number))
    };
    match read() {
        Some(Duration::ZERO) => Ok(None),
        Some(timeout) => Ok(Some(timeout)),
        None => Err(Status::invalid_argument(format!("invalid grpc-timeout: {text}"))),
    }
}

/// Shows the metadata of an answer as headers.
pub(super) fn to_response(metadata: &HeaderMap, headers: &mut HeaderMap) {
    for (name, value) in metadata {
        if let Ok(name) = HeaderName::try_from(format!("{PREFIX}{name}")) {
            headers.append(name, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(headers: &[(&str, &str)]) -> Parts {
        let request = headers.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn metadata_is_what_the_client_names_so_and_who_it_is() {
        let head = head(&[
            ("Authorization", "secret"),
            ("Grpc-Metadata-Token", "a"),
            ("grpc-metadata-token", "b"),
            ("Grpc-Metadata-Grpc-Encoding", "gzip"),
            ("Grpc-Metadata-Content-Type", "x"),
            ("Accept", "anything"),
            ("Host", "here:1"),
            ("X-Forwarded-For", "10.0.0.1"),
        ]);
        let metadata = of_request(&head, Some(([10, 0, 0, 2], 7).into()));
        let mut all: Vec<_> = metadata.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        all.sort_unstable();
        assert_eq!(
            all,
            [
                ("authorization", "secret"),
                ("token", "a"),
                ("token", "b"),
                ("x-forwarded-for", "10.0.0.1, 10.0.0.2"),
                ("x-forwarded-host", "here:1"),
            ]
        );
    }

    #[test]
    fn times_are_grpcs() {
        let of = |text| timeout(&head(&[("Grpc-Timeout", text)])).ok();
        for (text, expected) in [
            ("5S", Some(Some(Duration::from_secs(5)))),
            ("1n", Some(Some(Duration::from_nanos(1)))),
            ("0m", Some(None)),
            ("zz", None),
            ("S", None),
            ("5", None),
            ("\u{fc}", None),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        assert_eq!(timeout(&head(&[])).ok(), Some(None));
    }
}
