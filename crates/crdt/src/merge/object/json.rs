//! A strict JSON reader that keeps numbers exactly as they are written, and one way to write JSON.
//!
//! What it does not take is not merged field by field: it has no opinion on repaired text. Keys that occur twice,
//! unpaired surrogates and very deep nesting are refused, because two replicas could not agree on what they mean.

use litemap::LiteMap;
use smol_str::SmolStr;

/// Nesting deeper than this is refused; real objects have a tenth of it, and the reader recurses.
const DEPTH_MAX: usize = 100;

/// The fields of a map, sorted by their names. To insert many out of order takes the square of their number: collect them.
pub type Fields = LiteMap<SmolStr, Json>;

/// Fields in any order; `None` when a name occurs twice.
pub fn fields(pairs: Vec<(SmolStr, Json)>) -> Option<Fields> {
    if pairs.windows(2).all(|two| two[0].0 < two[1].0) {
        return Some(LiteMap::from_sorted_store_unchecked(pairs));
    }
    let count = pairs.len();
    let fields: Fields = pairs.into_iter().collect();
    (fields.len() == count).then_some(fields)
}

/// A JSON value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as it was written.
    Number(SmolStr),
    /// A string.
    String(SmolStr),
    /// A list.
    List(Vec<Json>),
    /// A map; its keys are sorted when it is written.
    Map(Fields),
}

impl Json {
    /// Reads a text that is one JSON value and nothing else but white space.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.space();
        (reader.at == text.len()).then_some(value)
    }

    /// That field of a map.
    pub fn get(&self, field: &str) -> Option<&Json> {
        match self {
            Self::Map(map) => map.get(field),
            _ => None,
        }
    }

    /// The fields, if it is a map.
    pub fn as_map(&self) -> Option<&Fields> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The one way to write it: sorted keys, no white space, numbers as they were.
    pub fn canonical(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    /// Writes it so behind what is there.
    pub fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(number) => out.push_str(number),
            Self::String(text) => write_string(text, out),
            Self::List(list) => {
                out.push('[');
                for (i, item) in list.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Map(map) => {
                out.push('{');
                for (i, (key, value)) in map.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    write_string(key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// Writes a string with its quotes, escaping only what must be.
pub fn write_string(text: &str, out: &mut String) {
    out.reserve(text.len() + 2);
    out.push('"');
    let mut rest = text;
    // What needs no escape, which is nearly everything, is copied as it is.
    while let Some(at) = rest.bytes().position(|byte| byte == b'"' || byte == b'\\' || byte < 0x20) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => {
                let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0');
                out.push_str("\\u00");
                out.push(digit(control >> 4));
                out.push(digit(control & 15));
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes that byte, or nothing.
    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn word(&mut self, word: &str, value: Json) -> Option<Json> {
        let there = self.text[self.at..].starts_with(word);
        self.at += word.len();
        there.then_some(value)
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.space();
        match self.peek()? {
            b'{' => self.map(depth),
            b'[' => self.list(depth),
            b'"' => Some(Json::String(self.string()?)),
            b't' => self.word("true", Json::Bool(true)),
            b'f' => self.word("false", Json::Bool(false)),
            b'n' => self.word("null", Json::Null),
            _ => self.number(),
        }
    }

    fn list(&mut self, depth: usize) -> Option<Json> {
        self.at += 1;
        let mut list = vec![];
        self.space();
        if self.take(b']') {
            return Some(Json::List(list));
        }
        loop {
            list.push(self.value(depth + 1)?);
            self.space();
            if self.take(b']') {
                return Some(Json::List(list));
            }
            if !self.take(b',') {
                return None;
            }
        }
    }

    fn map(&mut self, depth: usize) -> Option<Json> {
        self.at += 1;
        let mut map = vec![];
        self.space();
        if self.take(b'}') {
            return Some(Json::Map(Fields::new()));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return None;
            }
            let key = self.string()?;
            self.space();
            if !self.take(b':') {
                return None;
            }
            let value = self.value(depth + 1)?;
            map.push((key, value));
            self.space();
            if self.take(b'}') {
                return Some(Json::Map(fields(map)?));
            }
            if !self.take(b',') {
                return None;
            }
        }
    }

    fn number(&mut self) -> Option<Json> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') && self.digits() == 0 {
            return None;
        }
        if self.take(b'.') && self.digits() == 0 {
            return None;
        }
        if self.take(b'e') || self.take(b'E') {
            let _signed = self.take(b'+') || self.take(b'-');
            if self.digits() == 0 {
                return None;
            }
        }
        Some(Json::Number(self.text[start..self.at].into()))
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - start
    }

    fn string(&mut self) -> Option<SmolStr> {
        self.plain().map(SmolStr::from).or_else(|| self.escaped().map(SmolStr::from))
    }

    /// A string without escapes, as nearly all are. Otherwise nothing is taken.
    fn plain(&mut self) -> Option<&str> {
        let rest = &self.text[self.at + 1..];
        let plain = rest.bytes().position(|byte| byte == b'"' || byte == b'\\' || byte < 0x20)?;
        if rest.as_bytes()[plain] != b'"' {
            return None;
        }
        self.at += plain + 2;
        Some(&rest[..plain])
    }

    fn escaped(&mut self) -> Option<String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.bytes().position(|byte| byte == b'"' || byte == b'\\' || byte < 0x20)?;
            self.at += plain + 1;
            out.push_str(&rest[..plain]);
            match rest.as_bytes()[plain] {
                b'"' => return Some(out),
                b'\\' => out.push(self.escape()?),
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let byte = self.peek()?;
        self.at += 1;
        Some(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let high = self.hex()?;
                if !(0xd800..0xdc00).contains(&high) {
                    return char::from_u32(high);
                }
                if !(self.take(b'\\') && self.take(b'u')) {
                    return None;
                }
                let low = self.hex()?;
                if !(0xdc00..0xe000).contains(&low) {
                    return None;
                }
                return char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
            }
            _ => return None,
        })
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Option<String> {
        Some(Json::parse(text.as_bytes())?.canonical())
    }

    #[test]
    fn numbers_stay_as_they_were_written() {
        for number in ["0", "-0", "1.0", "1.50", "1e3", "1E+3", "123456789012345678901234567890", "0.1e-7"] {
            assert_eq!(canonical(number).as_deref(), Some(number));
        }
    }

    #[test]
    fn keys_are_sorted_and_strings_escaped_in_one_way() {
        let text = "{\"b\": [1, {\"z\":null,\"a\":\"\\u003c\\n\\/\\ud83d\\ude00\\u0001\"}],\n \"a\" : true}\n";
        let written = "{\"a\":true,\"b\":[1,{\"a\":\"<\\n/\u{1f600}\\u0001\",\"z\":null}]}";
        assert_eq!(canonical(text).as_deref(), Some(written));
        assert_eq!(canonical(written).as_deref(), Some(written));
    }

    #[test]
    fn doubtful_text_is_refused() {
        let deep = "[".repeat(500) + &"]".repeat(500);
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{\"a\":1,\"a\":2}",
            "01",
            "+1",
            "1.",
            ".5",
            "1e",
            "nul",
            "tru",
            "\"",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\\u12\"",
            "\"a\nb\"",
            "1 2",
            "{1:2}",
            "\"\\u+123\"",
            "truefalse",
            deep.as_str(),
        ] {
            assert_eq!(canonical(text), None, "{text}");
        }
        assert_eq!(Json::parse(b"\"\xff\""), None);
    }
}
