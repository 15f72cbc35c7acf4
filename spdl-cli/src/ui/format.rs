//! Numbers, durations, sizes and names as readable text.

use std::fmt::Write;
use std::time::Duration;

/// A number with thousands separators: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun: `1 class`, `2 classes`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// The numbers of used, all and skipped samples: `18 of 20 images, 2 skipped`. `noun` is the word for
/// one sample, and its plural.
pub(crate) fn used(used: u64, skipped: u64, [one, many]: [&str; 2]) -> String {
    let all = counted(used.saturating_add(skipped), one, many);
    format!("{} of {all}, {} skipped", count(used), count(skipped))
}

/// A measured value: `1,235`, `123.4`, `12.35`; below 10 with three decimals: `0.123`. A value that
/// is not finite becomes `–`.
pub(crate) fn measured(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "–".into(),
        size if size >= 999.5 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", count(size.round() as u64))
        }
        size if size >= 99.95 => format!("{value:.1}"),
        size if size >= 9.995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A share from 0 to 1 as a whole percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A duration in a suitable unit: `850 ns`, `12.3 µs`, `4.56 ms`, `78.9 s`.
pub(crate) fn time(time: Duration) -> String {
    let nanos = time.as_nanos() as f64;
    let (value, unit) = match nanos {
        nanos if nanos < 999.5 => return format!("{nanos:.0} ns"),
        nanos if nanos < 999.5e3 => (nanos / 1e3, "µs"),
        nanos if nanos < 999.5e6 => (nanos / 1e6, "ms"),
        nanos => (nanos / 1e9, "s"),
    };
    match value {
        value if value >= 99.95 => format!("{value:.0} {unit}"),
        value if value >= 9.995 => format!("{value:.1} {unit}"),
        value => format!("{value:.2} {unit}"),
    }
}

/// A duration of audio or video in a suitable unit: `850 ms`, `78.9 s`, `3.5 min`, `12.0 h`.
pub(crate) fn seconds(value: f64) -> String {
    match value {
        value if value >= 7200.0 => format!("{:.1} h", value / 3600.0),
        value if value >= 120.0 => format!("{:.1} min", value / 60.0),
        value => time(Duration::try_from_secs_f64(value).unwrap_or_default()),
    }
}

/// A size in a suitable unit, by powers of 1,000: `512 B`, `1.5 kB`, `92.3 MB`, `1.2 GB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"].into_iter().peekable();
    let mut unit = units.next().unwrap_or_default();
    while value >= 999.95 && units.peek().is_some() {
        value /= 1000.0;
        unit = units.next().unwrap_or_default();
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Escapes control characters, line separators, bidirectional controls, U+FFFE and U+FFFF.
///
/// Each byte of such a character becomes `\x` and two hexadecimal digits, so that a file name cannot
/// break the line, control the terminal or change the writing direction.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unprintable(character) {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a `String` cannot fail.
                let _ = write!(safe, "\\x{byte:02x}");
            }
        } else {
            safe.push(character);
        }
    }
    safe
}

fn is_unprintable(character: char) -> bool {
    let is_bidirectional_control = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    // Line separators, and the characters that XML 1.0 forbids.
    let breaks = matches!(character, '\u{2028}' | '\u{2029}' | '\u{fffe}' | '\u{ffff}');
    character.is_control() || is_bidirectional_control || breaks
}

/// A name quoted for a POSIX shell, if it needs quotes.
pub(crate) fn for_shell(name: &str) -> String {
    let unquoted = "%+,-./:=@_";
    if !name.is_empty() && name.chars().all(|it| it.is_alphanumeric() || unquoted.contains(it)) {
        return name.to_owned();
    }
    format!("'{}'", name.replace('\'', r"'\''"))
}

/// Wraps text between words at `width` characters; a longer word gets a line alone.
pub(crate) fn wrap(text: &str, width: usize) -> String {
    let mut wrapped = String::with_capacity(text.len());
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            wrapped.push('\n');
            column = 0;
        } else if column > 0 {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += length;
    }
    wrapped
}

/// A Unix time in seconds as `2026-11-21 06:03 UTC`.
///
/// The algorithm is `civil_from_days` of Howard Hinnant's "chrono-Compatible Low-Level Date Algorithms".
pub(crate) fn date(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Days since 1 March of year 0: with years from March, the leap day is the last day.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

/// Parses a size in bytes with an optional unit: `500000`, `256MB` (powers of 1000), `1.5GiB` (of 1024).
pub(crate) fn byte_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let (letter, base) = match unit.strip_suffix("ib") {
        Some(letter) => (letter, 1024_f64),
        None => (unit.strip_suffix('b').unwrap_or(&unit), 1000_f64),
    };
    let power = ["", "k", "m", "g", "t"].iter().position(|known| *known == letter);
    let value = number.parse::<f64>().ok().zip(power).map(|(n, power)| n * base.powi(power as i32));
    match value {
        // `f64` represents all integers below 2^53 exactly.
        Some(value) if (1.0..9e15).contains(&value) => Ok(value as u64),
        _ => Err("expected a size in bytes, such as 500000, 256MB or 1.5GiB".to_owned()),
    }
}

/// The ratio `part / whole`, from 0 to 1.
pub(crate) fn share(part: Duration, whole: Duration) -> f64 {
    let whole = whole.as_secs_f64();
    if whole > 0.0 { (part.as_secs_f64() / whole).clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        assert_eq!(
            [0, 12, 999, 1000, 1_234_567].map(count),
            ["0", "12", "999", "1,000", "1,234,567"]
        );
    }

    #[test]
    fn skipped_images_count_towards_the_total() {
        let used = |used_images, skipped| used(used_images, skipped, ["image", "images"]);
        assert_eq!(used(1998, 2), "1,998 of 2,000 images, 2 skipped");
        assert_eq!(used(0, 1), "0 of 1 image, 1 skipped");
    }

    #[test]
    fn rounding_never_shows_a_fourth_digit() {
        assert_eq!(
            [0.1234, 9.996, 99.96, 999.6].map(measured),
            ["0.123", "10.00", "100.0", "1,000"]
        );
        let times = [999, 1_000, 9_996, 99_960, 999_600, 78_900_000_000].map(Duration::from_nanos);
        assert_eq!(
            times.map(time),
            ["999 ns", "1.00 µs", "10.0 µs", "100 µs", "1.00 ms", "78.9 s"]
        );
        assert_eq!(
            [512, 1_500, 999_960, u64::MAX].map(bytes),
            ["512 B", "1.5 kB", "1.0 MB", "18.4 EB"]
        );
    }

    #[test]
    fn long_durations_are_minutes_and_hours() {
        let shown = [0.25, 119.0, 210.0, 43_200.0, -1.0].map(seconds);
        assert_eq!(shown, ["250 ms", "119 s", "3.5 min", "12.0 h", "0 ns"]);
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("größe\n\x1b[2J\u{202e}gpj"), r"größe\x0a\x1b[2J\xe2\x80\xaegpj");
    }

    #[test]
    fn names_with_shell_metacharacters_are_quoted() {
        for unquoted in ["a/b-1.tar", "s3://bucket/größe", "x=1,2"] {
            assert_eq!(for_shell(unquoted), unquoted);
        }
        for (name, word) in [("a b", "'a b'"), ("$x*", "'$x*'"), ("it's", r"'it'\''s'"), ("", "''")]
        {
            assert_eq!(for_shell(name), word);
        }
    }

    #[test]
    fn lines_break_between_words_only() {
        assert_eq!(wrap("one two three", 7), "one two\nthree");
        assert_eq!(wrap("incomprehensible two", 7), "incomprehensible\ntwo");
        assert_eq!(wrap("", 7), "");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_241_027), "2026-11-21 06:03 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00 UTC");
    }

    #[test]
    fn sizes_may_have_decimal_and_binary_units() {
        for (text, bytes) in [
            ("1", 1),
            ("500000", 500_000),
            ("256MB", 256_000_000),
            ("256 mb", 256_000_000),
            ("1.5GB", 1_500_000_000),
            ("64MiB", 64 << 20),
            ("2k", 2000),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(byte_size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "MB", "0", "0.5", "-1", "1XB", "1e3", "1.2.3MB", "99999999TB", "inf", "nan"]
        {
            assert!(byte_size(bad).is_err(), "{bad}");
        }
    }
}
