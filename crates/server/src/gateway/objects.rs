//! Where a JSON object ends, in a body that arrives in pieces. Only the brackets and strings are looked at, each byte once;
//! what is in between is read when the object is whole.

use bytes::{Bytes, BytesMut};
use tonic::Status;

use super::json;

/// The deepest nesting that is taken; the reader of JSON has the same limit.
const DEPTH_MAX: usize = 128;

/// A body, cut into its objects.
pub(super) struct Objects {
    text: BytesMut,
    /// How much of the text was looked at.
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The longest object that is taken, bytes.
    limit: usize,
}

impl Objects {
    pub(super) fn new(limit: usize) -> Self {
        Self { text: BytesMut::new(), seen: 0, depth: 0, in_string: false, escaped: false, limit }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.text.extend_from_slice(bytes);
    }

    /// Whether nothing but white space is left: a body may end here.
    pub(super) fn is_over(&self) -> bool {
        self.text.iter().all(u8::is_ascii_whitespace)
    }

    /// The next object, when it is there whole.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        while let Some(byte) = self.text.get(self.seen).copied() {
            self.seen += 1;
            if self.seen > self.limit {
                return Err(too_large(self.limit));
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' if self.depth > 0 => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' => self.depth += 1,
                b'[' if self.depth > 0 => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        let whole = self.text.split_to(std::mem::take(&mut self.seen));
                        return Ok(Some(whole.freeze()));
                    }
                }
                _ if self.depth > 0 || byte.is_ascii_whitespace() => {}
                _ => return Err(json::malformed(&format!("unexpected {:?}, not an object", char::from(byte)))),
            }
            if self.depth > DEPTH_MAX {
                return Err(json::malformed(&format!("nested deeper than {DEPTH_MAX}")));
            }
        }
        Ok(None)
    }
}

/// The status of a request that is longer than any that could be taken.
pub(super) fn too_large(limit: usize) -> Status {
    Status::resource_exhausted(format!("eddy: the JSON of a request is larger than {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, piece: usize) -> Result<Vec<String>, String> {
        let (mut objects, mut out) = (Objects::new(1000), vec![]);
        for bytes in text.as_bytes().chunks(piece) {
            objects.push(bytes);
            while let Some(object) = objects.next().map_err(|status| status.message().to_owned())? {
                out.push(String::from_utf8_lossy(&object).trim().to_owned());
            }
        }
        Ok(out)
    }

    #[test]
    fn objects_are_found_however_the_body_is_cut() {
        let objects = [r#"{"a":{"b":[1,{"c":"}{\"]["}]}}"#, "{}", r#"{"\\":"\\"}"#];
        let text = objects.join(" \n");
        for piece in 1..=text.len() {
            assert_eq!(cut(&text, piece).unwrap(), objects, "in pieces of {piece}");
        }
        assert_eq!(cut(r#"{"a":"#, 1).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_object_is_refused_at_once() {
        for text in ["null", "[", "]", "7", "\"", "{}}", "{} x"] {
            assert!(cut(text, 1).is_err_and(|why| why.contains("not an object")), "{text}");
        }
        assert!(cut(&"{\"a\":".repeat(150), 7).is_err_and(|why| why.contains("nested deeper than 128")));
        assert!(cut(&format!("{{\"{}", "a".repeat(1000)), 9).is_err_and(|why| why.contains("larger than 1000")));
    }
}
