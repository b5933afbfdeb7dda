//! Personal data in a text.
//!
//! Scanners by hand rather than a crate of regular expressions: four shapes, each in one pass.
//! A shape counts only between boundaries, so digits inside of longer numbers and ids do not.

mod card;
mod email;
mod phone;
mod reading;

use card::has_card;
use email::has_email;
use phone::has_phone;
use reading::plain;

use crate::error::JobError;
use crate::guard::{ContentGuard, Gate, Guard, GuardPhase};

/// Refuses a text with personal data in it: social security numbers, card numbers that pass the
/// Luhn check, e-mail addresses and phone numbers.
///
/// The refusal and the log name the kinds that were found, never the content. It finds what is
/// written the usual ways; it is no promise that nothing else is personal. A card's number begins as some issuer's
/// does, has that issuer's length and is grouped as cards are; a phone number has its country's code, or the rules
/// and the punctuation of North American ones. So figures, dates and timestamps are hardly ever taken for either.
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
        crate::aside::error!("{message}");
        Err(JobError::guardrail(message))
    }
}

fn kinds_in(text: &str) -> Vec<&'static str> {
    let text = plain(text);
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
        return false;
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
    // Also one that a line's end goes through.
    const SHAPES: [&str; 4] = [
        "ddd-dd-dddd",
        "ddd dd dddd",
        "ddd-\ndd-dddd",
        "ddd-dd-\ndddd",
    ];
    (0..text.len()).any(|at| {
        let rest = &text[at..];
        SHAPES.iter().any(|template| {
            fits(rest, template).is_some_and(|length| {
                let digits: String = rest[..length]
                    .iter()
                    .filter(|c| c.is_ascii_digit())
                    .collect();
                // Numbers that are never given out.
                let given = !digits.starts_with("000")
                    && !digits.starts_with("666")
                    && !digits.starts_with('9')
                    && &digits[3..5] != "00"
                    && &digits[5..] != "0000";
                given && begins(text, at) && ends(text, at + length)
            })
        })
    })
}

fn count(text: &[char], from: usize, counts: impl Fn(&char) -> bool) -> usize {
    text.get(from..)
        .map_or(0, |rest| rest.iter().take_while(|c| counts(c)).count())
}

#[cfg(test)]
mod tests;
