//! One field of a JSON text, without reading the rest: the write path asks every put of a Kubernetes object for its uid.
//!
//! It is no judge: text that is no JSON may be answered too. What it finds is only used by the replica on its own
//! writes, or to show a change to watchers; merges read whole objects.

/// The text of the value at that path of fields; `None` when it is not there.
pub fn find<'a>(text: &'a [u8], path: &[&str]) -> Option<&'a [u8]> {
    let Some((field, rest)) = path.split_first() else { return Some(text) };
    let mut at = space(text, 0);
    if text.get(at) != Some(&b'{') {
        return None;
    }
    at += 1;
    loop {
        at = space(text, at);
        if text.get(at) != Some(&b'"') {
            return None;
        }
        let end = skip_string(text, at)?;
        let is_it = text.get(at + 1..end - 1)? == field.as_bytes();
        at = space(text, end);
        if text.get(at) != Some(&b':') {
            return None;
        }
        let start = space(text, at + 1);
        at = skip(text, start)?;
        if is_it {
            return find(text.get(start..at)?, rest);
        }
        at = space(text, at);
        if text.get(at) != Some(&b',') {
            return None;
        }
        at += 1;
    }
}

/// The string at that path, with its quotes and as it is escaped; nothing for an empty one.
pub fn string<'a>(text: &'a [u8], path: &[&str]) -> Option<&'a [u8]> {
    find(text, path).filter(|found| found.len() > 2 && found[0] == b'"')
}

fn space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// Behind the string that begins there.
fn skip_string(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Behind the value that begins there.
fn skip(text: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut depth) = (start, 0_usize);
    loop {
        match text.get(at)? {
            b'"' => at = skip_string(text, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                // The end of what is around a scalar.
                let Some(less) = depth.checked_sub(1) else { return Some(at) };
                depth = less;
                at += 1;
            }
            b',' if depth == 0 => return Some(at),
            _ => at += 1,
        }
        let is_closed = depth == 0 && matches!(text.get(at - 1), Some(b'"' | b'}' | b']'));
        if is_closed || at == text.len() {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_without_reading_the_rest() {
        let text = br#" { "a" : {"uid":"no","x":[{"uid":1},"}"]} , "n":-1.5e3,"metadata":{"na\"me":"\\","uid":"u-1"},"#;
        assert_eq!(find(text, &["metadata", "uid"]), Some(&br#""u-1""#[..]));
        assert_eq!(find(text, &["a", "uid"]), Some(&br#""no""#[..]));
        assert_eq!(find(text, &["n"]), Some(&b"-1.5e3"[..]));
        assert_eq!(find(text, &["a", "x"]), Some(&br#"[{"uid":1},"}"]"#[..]));
        assert_eq!(find(text, &["uid"]), None);
    }

    #[test]
    fn no_text_stops_it() {
        let text = br#"{"a":{"b":["c\\",{"d":null}]},"metadata":{"uid":"u"}}"#;
        for end in 0..text.len() {
            find(&text[..end], &["metadata", "uid"]);
        }
        for text in ["", "{", "{}", "[]", "\"", "{\"a\"", "{\"a\":", "{\"a\":}", "{\"a\":]", "{\"\\", "{,"] {
            assert_eq!(find(text.as_bytes(), &["a", "b"]), None, "{text}");
        }
        assert_eq!(string(br#"{"a":""}"#, &["a"]), None);
    }
}
