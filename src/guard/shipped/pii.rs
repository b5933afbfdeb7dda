//! Personal data in a text.
//!
//! Scanners by hand rather than a crate of regular expressions: four shapes, each in one pass.
//! A shape counts only between boundaries, so digits inside of longer numbers and ids do not.

use crate::error::JobError;
use crate::guard::{ContentGuard, Gate, Guard, GuardPhase};

/// Refuses a text with personal data in it: social security numbers, card numbers that pass the
/// Luhn check, e-mail addresses and phone numbers.
///
/// The refusal and the log name the kinds that were found, never the content. It finds what is
/// written the usual ways; it is no promise that nothing else is personal.
#[derive(Clone, Copy, Debug, Default)]
pub struct PiiDetection;

impl Guard for PiiDetection {}

impl ContentGuard for PiiDetection {
    type Target = str;

    fn judge(&self, text: &str, gate: &Gate<'_>) -> Result<(), JobError> {
        let kinds = kinds_in(text);
        if kinds.is_empty() {
            return Ok(());
        }
        let side = match gate.phase() {
            Some(GuardPhase::ContentInput) => "input",
            _ => "output",
        };
        let message = format!("PII detected in tool {side}: {}", kinds.join(", "));
        log::error!("{message}");
        Err(JobError::guardrail(message))
    }
}

fn kinds_in(text: &str) -> Vec<&'static str> {
    let text: Vec<char> = text.chars().map(plain).collect();
    [
        has_social_security(&text).then_some("social security number"),
        has_card(&text).then_some("card number"),
        has_email(&text).then_some("e-mail address"),
        has_phone(&text).then_some("phone number"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What a reader takes for the same character: other dashes and spaces, full-width forms.
fn plain(character: char) -> char {
    match character {
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{3000}' => ' ',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{ff01}'..='\u{ff5e}' => {
            char::from_u32(u32::from(character) - 0xfee0).unwrap_or(character)
        }
        other => other,
    }
}

/// Matches a template at the start: `d` is a digit, anything else itself. Answers its length.
fn fits(text: &[char], template: &str) -> Option<usize> {
    let mut length = 0;
    for expected in template.chars() {
        let found = text.get(length)?;
        let fits = match expected {
            'd' => found.is_ascii_digit(),
            other => *found == other,
        };
        if !fits {
            return None;
        }
        length += 1;
    }
    Some(length)
}

/// Whether no number or word goes on across this place.
fn begins(text: &[char], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).and_then(|before| text.get(before)) else {
        return true;
    };
    if before.is_alphanumeric() {
        // Unless the letter is the second half of an escape: in a JSON text a line ends with `\\n`.
        let escape = matches!(before, 'n' | 'r' | 't' | 'b' | 'f')
            && at.checked_sub(2).and_then(|at| text.get(at)) == Some(&'\\');
        return escape;
    }
    // A number that goes on across a separator, as in `12-3`, is another one.
    let joins = matches!(before, '-' | '.' | '+');
    let digit_before = at
        .checked_sub(2)
        .and_then(|at| text.get(at))
        .is_some_and(char::is_ascii_digit);
    !(joins && digit_before)
}

fn ends(text: &[char], at: usize) -> bool {
    match text.get(at) {
        None => true,
        Some(after) if after.is_alphanumeric() => false,
        Some('-' | '.') => !text.get(at + 1).is_some_and(char::is_ascii_digit),
        Some(_) => true,
    }
}

fn has_social_security(text: &[char]) -> bool {
    (0..text.len()).any(|at| {
        let rest = &text[at..];
        ["ddd-dd-dddd", "ddd dd dddd"].iter().any(|template| {
            fits(rest, template).is_some_and(|length| {
                let part = |range: std::ops::Range<usize>| rest[range].iter().collect::<String>();
                // Numbers that are never given out.
                let given = !matches!(part(0..3).as_str(), "000" | "666")
                    && rest[0] != '9'
                    && part(4..6) != "00"
                    && part(7..11) != "0000";
                given && begins(text, at) && ends(text, at + length)
            })
        })
    })
}

fn has_card(text: &[char]) -> bool {
    let mut at = 0;
    while at < text.len() {
        if !text[at].is_ascii_digit() || !begins(text, at) {
            at += 1;
            continue;
        }
        // The groups of one written number: digits, and one space or hyphen between two groups.
        let mut groups: Vec<(usize, usize)> = Vec::new();
        let mut from = at;
        loop {
            let length = text[from..]
                .iter()
                .take_while(|character| character.is_ascii_digit())
                .count();
            let to = from + length;
            groups.push((from, to));
            let goes_on = matches!(text.get(to), Some(' ' | '-'))
                && text.get(to + 1).is_some_and(char::is_ascii_digit);
            if !goes_on {
                at = to;
                break;
            }
            from = to + 1;
        }
        // Two numbers may stand side by side, so each run of whole groups is looked at.
        for first in 0..groups.len() {
            let mut digits = Vec::new();
            for &(from, to) in &groups[first..] {
                digits.extend(text[from..to].iter().filter_map(|digit| digit.to_digit(10)));
                if digits.len() > 19 {
                    break;
                }
                if digits.len() >= 13 && ends_word(text, to) && luhn(&digits) {
                    return true;
                }
            }
        }
    }
    false
}

fn ends_word(text: &[char], at: usize) -> bool {
    text.get(at).is_none_or(|after| !after.is_alphanumeric())
}

fn luhn(digits: &[u32]) -> bool {
    // All zeros pass the sum and are nobody's card.
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(place, digit)| match (place % 2, digit * 2) {
            (0, _) => *digit,
            (_, doubled) if doubled > 9 => doubled - 9,
            (_, doubled) => doubled,
        })
        .sum();
    sum != 0 && sum.is_multiple_of(10)
}

fn has_email(text: &[char]) -> bool {
    let local = |c: &char| c.is_alphanumeric() || "._%+-'".contains(*c);
    let label = |c: &char| c.is_alphanumeric() || *c == '-';
    text.iter().enumerate().any(|(at, &character)| {
        if character != '@' || !at.checked_sub(1).is_some_and(|before| local(&text[before])) {
            return false;
        }
        let domain: String = text[at + 1..]
            .iter()
            .take_while(|c| label(c) || **c == '.')
            .collect();
        let labels: Vec<_> = domain.trim_end_matches('.').split('.').collect();
        let Some(top) = labels.last() else {
            return false;
        };
        labels.len() >= 2
            && labels.iter().all(|label| !label.is_empty())
            && top.chars().count() >= 2
            && top.chars().all(char::is_alphabetic)
    })
}

fn has_phone(text: &[char]) -> bool {
    const NATIONAL: [&str; 6] = [
        "(ddd) ddd-dddd",
        "(ddd)ddd-dddd",
        "(ddd) ddd dddd",
        "ddd-ddd-dddd",
        "ddd.ddd.dddd",
        "ddd ddd dddd",
    ];
    (0..text.len()).any(|at| {
        if !begins(text, at) {
            return false;
        }
        let prefix = ["+1 ", "+1-", "+1.", "+1", "1-", "1 ", "1.", ""];
        let national = prefix.iter().any(|prefix| {
            fits(&text[at..], prefix).is_some_and(|skipped| {
                let from = at + skipped;
                NATIONAL.iter().any(|template| {
                    fits(&text[from..], template).is_some_and(|length| ends(text, from + length))
                })
            })
        });
        national || is_international(text, at)
    })
}

/// A plus and 8 to 15 digits, singly separated.
fn is_international(text: &[char], at: usize) -> bool {
    if text[at] != '+' || !text.get(at + 1).is_some_and(char::is_ascii_digit) {
        return false;
    }
    let mut digits = 0;
    let mut to = at + 1;
    while let Some(character) = text.get(to) {
        if character.is_ascii_digit() {
            digits += 1;
        } else if !matches!(character, ' ' | '-' | '.' | '(' | ')' | '/') {
            break;
        }
        to += 1;
    }
    (8..=15).contains(&digits) && ends_word(text, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&'static str> {
        kinds_in(text)
    }

    // case GRD-26
    #[test]
    fn each_kind_is_found_and_named() {
        let table = [
            ("ssn 123-45-6789.", "social security number"),
            ("{\"ssn\":\"123-45-6789\"}", "social security number"),
            ("4111111111111111", "card number"),
            ("card: 4111 1111 1111 1111!", "card number"),
            ("5500-0000-0000-0004", "card number"),
            ("amex 378282246310005", "card number"),
            ("order 12 4111111111111111", "card number"),
            ("４１１１１１１１１１１１１１１１", "card number"),
            ("write to ann.o'hara+x@mail.example.org.", "e-mail address"),
            ("call (212) 555-0123", "phone number"),
            ("call 212-555-0123 now", "phone number"),
            ("+1 212 555 0123", "phone number"),
            ("1-212-555-0123", "phone number"),
            ("+49 (30) 1234-5678", "phone number"),
            ("212\u{2011}555\u{2011}0123", "phone number"),
        ];
        for (text, kind) in table {
            assert_eq!(found(text), [kind], "{text}");
        }
    }

    #[test]
    fn near_misses_pass() {
        let table = [
            "",
            "nothing personal, 42 of 1234",
            // One digit off: Luhn fails.
            "4111111111111112",
            "4111 1111 1111 1112",
            "0000000000000000",
            // Too short and too long for a card.
            "411111111111",
            "41111111111111111111",
            // Inside of a word or a longer number.
            "id-4111111111111111a",
            "x123-45-6789",
            "123-45-67890",
            "1123-45-6789",
            "000-12-3456",
            "666-12-3456",
            "123-00-4567",
            "123-45-0000",
            "12-212-555-0123",
            "2125550123",
            "2026-11-30 12:00:00",
            "192.168.100.1",
            "user@localhost",
            "@example.com",
            "a @ b.c",
            "550e8400-e29b-41d4-a716-446655440000",
        ];
        for text in table {
            assert_eq!(found(text), Vec::<&str>::new(), "{text}");
        }
    }

    #[test]
    fn several_kinds_are_named_together_and_the_content_never() {
        let text = "ann@example.org 123-45-6789 4111111111111111";
        let refusal = PiiDetection.judge(text, &Gate::outside()).unwrap_err();
        let message = refusal.llm_message();
        assert_eq!(
            message,
            "Guardrail violation: PII detected in tool output: social security number, card \
             number, e-mail address"
        );
        let all = format!("{refusal:?} {refusal} {message}");
        for secret in ["ann", "123-45", "4111"] {
            assert!(!all.contains(secret), "{all}");
        }
    }
}
