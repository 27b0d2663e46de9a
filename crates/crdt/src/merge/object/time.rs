//! Times as Kubernetes writes them in JSON: RFC 3339 in UTC, with no fraction or with microseconds.
//!
//! Dates are computed here: the crates that do it can also read the clock, which a state machine must not know.

const DAY: i64 = 86_400;
/// Days from the first of March of the year 0 to 1970.
const TO_1970: i64 = 719_468;
/// Days of 400 years: after them the calendar repeats.
const CYCLE: i64 = 146_097;

/// The text of a time in seconds since 1970, with these nanoseconds if it has microseconds; `None` for one that has no such text.
pub fn written(seconds: i64, nanos: Option<u64>) -> Option<String> {
    let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, day) = date(days)?;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let whole = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    match nanos {
        None => Some(whole + "Z"),
        Some(nanos) => (nanos % 1000 == 0 && nanos < 1_000_000_000).then(|| format!("{whole}.{:06}Z", nanos / 1000)),
    }
}

/// The seconds since 1970 and the nanoseconds of such a text, with a fraction only where there are `micros`.
pub fn read(text: &str, micros: bool) -> Option<(i64, u64)> {
    let length = if micros { 27 } else { 20 };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (length - 1, b'Z')];
    let bytes = text.as_bytes();
    if bytes.len() != length || marks.iter().any(|(at, mark)| bytes[*at] != *mark) || (micros && bytes[19] != b'.') {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse().ok()
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days(year, month, day);
    if date(days) != Some((year, month, day)) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let nanos = if micros { number(20, 26)?.cast_unsigned() * 1000 } else { 0 };
    Some((days * DAY + hour * 3600 + minute * 60 + second, nanos))
}

/// The days from 1970 to a date. A year is counted from March, so that the day of a leap year is its last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (cycle, of_cycle) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    cycle * CYCLE + of_cycle * 365 + of_cycle / 4 - of_cycle / 100 + of_year - TO_1970
}

/// Year, month and day of a number of days since 1970; `None` outside the years 0 to 9999.
fn date(days: i64) -> Option<(i64, i64, i64)> {
    let days = days.checked_add(TO_1970)?;
    let (cycle, of_cycle) = (days.div_euclid(CYCLE), days.rem_euclid(CYCLE));
    let year = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let (month, day) = ((from_march + 2) % 12 + 1, of_year - (153 * from_march + 2) / 5 + 1);
    let year = cycle * 400 + year + i64::from(month <= 2);
    (0..=9999).contains(&year).then_some((year, month, day))
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
            (253_402_300_799, None, "9999-12-31T23:59:59Z"),
            (1_709_208_000, Some(1_002_000), "2024-02-29T12:00:00.001002Z"),
        ] {
            assert_eq!(written(seconds, nanos).as_deref(), Some(text));
            assert_eq!(read(text, nanos.is_some()), Some((seconds, nanos.unwrap_or_default())));
        }
        let wrong =
            ["", "2024-02-30T12:00:00Z", "2023-02-29T12:00:00Z", "2024-00-10T12:00:00Z", "2024-02-29T12:00:00+01:00"];
        for text in wrong.into_iter().chain(["2024-02-29t12:00:00Z", "2024-02-29T24:00:00Z", "éééééééééé"]) {
            assert_eq!(read(text, false), None, "{text}");
        }
        assert_eq!(written(i64::MAX, None), None);
        assert_eq!(written(0, Some(1)), None);
    }

    #[test]
    fn every_day_of_ten_thousand_years_comes_back() {
        let mut next = Some((0, 1, 1));
        let first = days(0, 1, 1);
        for day in first..=days(9999, 12, 31) {
            let (year, month, of_month) = date(day).expect("a day of these years");
            assert_eq!(Some((year, month, of_month)), next);
            assert_eq!(days(year, month, of_month), day);
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1];
            next = match (month, of_month) {
                (12, 31) => Some((year + 1, 1, 1)),
                (_, last) if last == length => Some((year, month + 1, 1)),
                _ => Some((year, month, of_month + 1)),
            };
        }
    }
}
