//! Times as Kubernetes writes them in JSON: RFC 3339 in UTC, with no fraction or with microseconds.

use time::{Date, Month, OffsetDateTime, Time};

/// The text of a time in seconds since 1970, with these nanoseconds if it has microseconds; `None` for one that has no such text.
pub fn written(seconds: i64, nanos: Option<u64>) -> Option<String> {
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok().filter(|time| (0..=9999).contains(&time.year()))?;
    let (date, clock) = (time.date(), time.time());
    let (year, month, day) = date.to_calendar_date();
    let (hour, minute, second) = clock.as_hms();
    let mut text = format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}", u8::from(month));
    if let Some(nanos) = nanos {
        if nanos % 1000 != 0 || nanos >= 1_000_000_000 {
            return None;
        }
        text.push_str(&format!(".{:06}", nanos / 1000));
    }
    text.push('Z');
    Some(text)
}

/// The seconds since 1970 and the nanoseconds of such a text, with a fraction only where there are `micros`.
pub fn read(text: &str, micros: bool) -> Option<(i64, u64)> {
    let bytes = text.as_bytes();
    let length = if micros { 27 } else { 20 };
    let number = |from: usize, to: usize| -> Option<u32> {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse().ok()
    };
    let small = |from: usize| u8::try_from(number(from, from + 2)?).ok();
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (length - 1, b'Z')];
    if bytes.len() != length || marks.iter().any(|(at, mark)| bytes[*at] != *mark) || (micros && bytes[19] != b'.') {
        return None;
    }
    let date = Date::from_calendar_date(number(0, 4)?.cast_signed(), Month::try_from(small(5)?).ok()?, small(8)?).ok()?;
    let clock = Time::from_hms(small(11)?, small(14)?, small(17)?).ok()?;
    let nanos = if micros { u64::from(number(20, 26)?) * 1000 } else { 0 };
    Some((date.with_time(clock).assume_utc().unix_timestamp(), nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_as_kubernetes_does() {
        for (seconds, nanos, text) in [
            (0, None, "1970-01-01T00:00:00Z"),
            (1_264_590_000, None, "2010-01-27T11:00:00Z"),
            (-62_135_596_799, None, "0001-01-01T00:00:01Z"),
            (1_709_208_000, Some(1_002_000), "2024-02-29T12:00:00.001002Z"),
        ] {
            assert_eq!(written(seconds, nanos).as_deref(), Some(text));
            assert_eq!(read(text, nanos.is_some()), Some((seconds, nanos.unwrap_or_default())));
        }
        for text in ["", "2024-02-30T12:00:00Z", "2024-02-29T12:00:00+01:00", "2024-02-29t12:00:00Z", "2024-02-29T24:00:00Z", "éééééééééé"] {
            assert_eq!(read(text, false), None, "{text}");
        }
        assert_eq!(written(i64::MAX, None), None);
        assert_eq!(written(0, Some(1)), None);
    }
}
