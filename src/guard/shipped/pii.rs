//! Personal data in a text.
//!
//! Scanners by hand rather than a crate of regular expressions: four shapes, each in one pass.
//! A shape counts only between boundaries, so digits inside of longer numbers and ids do not.

mod reading;

use reading::plain;

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

/// The digits of one group of a number, and what stands between it and the group before.
struct Group {
    from: usize,
    to: usize,
    apart: Apart,
}

/// What stands between two groups.
#[derive(Clone, Copy, PartialEq)]
enum Apart {
    /// One blank or hyphen, as people write cards.
    Usual,
    /// A dot, a line's end, or more than one character.
    Unusual,
}

/// How many characters may stand between two groups of one card.
const MAX_APART: usize = 3;

fn has_card(text: &[char]) -> bool {
    let mut at = 0;
    while at < text.len() {
        if !text[at].is_ascii_digit() || !begins(text, at) {
            at += 1;
            continue;
        }
        let groups = groups(text, at);
        at = groups.last().map_or(at + 1, |group| group.to);
        if (0..groups.len()).any(|first| is_card(text, &groups[first..])) {
            return true;
        }
    }
    false
}

/// The groups of digits from here on that may belong together.
fn groups(text: &[char], at: usize) -> Vec<Group> {
    let mut groups = Vec::new();
    let (mut from, mut apart) = (at, Apart::Usual);
    loop {
        let to = from + count(text, from, char::is_ascii_digit);
        groups.push(Group { from, to, apart });
        let between = count(text, to, |c| matches!(c, ' ' | '-' | '.' | '\n'));
        let next = to + between;
        if !(1..=MAX_APART).contains(&between) || !text.get(next).is_some_and(char::is_ascii_digit)
        {
            return groups;
        }
        apart = match text[to..next] {
            [' ' | '-'] => Apart::Usual,
            _ => Apart::Unusual,
        };
        from = next;
    }
}

fn count(text: &[char], from: usize, counts: impl Fn(&char) -> bool) -> usize {
    text.get(from..)
        .map_or(0, |rest| rest.iter().take_while(|c| counts(c)).count())
}

/// Whether a card begins with the first of these groups. Two numbers may stand side by side, so it
/// may end with any of them.
///
/// Groups that are set apart as no list of numbers is may be of any size; others must look like a
/// card's, or any column of figures would be one in ten times.
fn is_card(text: &[char], groups: &[Group]) -> bool {
    let mut digits = Vec::new();
    let (mut usual, mut sized) = (true, true);
    for (place, group) in groups.iter().enumerate() {
        if place == 0 && group.apart == Apart::Unusual && text[group.from - 1] == '.' {
            // The rest of a fraction or a version.
            return false;
        }
        usual &= place == 0 || group.apart == Apart::Usual;
        sized &= (3..=6).contains(&(group.to - group.from));
        digits.extend(
            text[group.from..group.to]
                .iter()
                .filter_map(|c| c.to_digit(10)),
        );
        if digits.len() > 19 {
            return false;
        }
        let shaped = usual || sized;
        if digits.len() >= 13 && shaped && ends_word(text, group.to) && luhn(&digits) {
            return true;
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
    text.iter().enumerate().any(|(at, &character)| {
        character == '@' && ends_local_part(&text[..at]) && begins_domain(&text[at + 1..])
    })
}

/// Whether what stands before an `@` can be the end of a mailbox's name, quoted or not.
fn ends_local_part(before: &[char]) -> bool {
    let plain = |c: &char| c.is_alphanumeric() || "._%+-'!#$&*^`~".contains(*c);
    match before {
        // A quoted name has something in it. What a JSON text begins with has not.
        [.., last, '"'] => plain(last),
        [.., last] => plain(last),
        [] => false,
    }
}

/// Whether a domain begins here: labels, the last of letters or in punycode. What follows it does not
/// matter.
fn begins_domain(text: &[char]) -> bool {
    let mut from = 0;
    let mut labels = 0;
    loop {
        let length = count(text, from, |c| c.is_alphanumeric() || *c == '-');
        let label = &text[from..from + length];
        if labels > 0 && begins_top_level(label) {
            return true;
        }
        if length == 0 || text.get(from + length) != Some(&'.') {
            return false;
        }
        labels += 1;
        from += length + 1;
    }
}

fn begins_top_level(label: &[char]) -> bool {
    if let ['x' | 'X', 'n' | 'N', '-', '-', rest @ ..] = label {
        return !rest.is_empty();
    }
    let letters = label.iter().take_while(|c| c.is_alphabetic()).count();
    letters >= 2 && label.get(letters).is_none_or(|after| *after == '-')
}

fn has_phone(text: &[char]) -> bool {
    const NATIONAL: [&str; 9] = [
        "(ddd) ddd-dddd",
        "(ddd)ddd-dddd",
        "(ddd)-ddd-dddd",
        "(ddd) ddd dddd",
        "(ddd) ddd.dddd",
        "(ddd).ddd.dddd",
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
                    fits(&text[from..], template)
                        .is_some_and(|length| ends_phone(text, from + length))
                })
            })
        });
        national || is_international(text, at)
    })
}

/// As [`ends`], or with an extension: `x12`, `ext12`.
fn ends_phone(text: &[char], at: usize) -> bool {
    ends(text, at) || matches!(text.get(at), Some('x' | 'X' | 'e' | 'E'))
}

/// A plus and 8 to 15 digits, apart or not. What follows them does not matter, and a number that
/// stands beside them hides none.
fn is_international(text: &[char], at: usize) -> bool {
    if text[at] != '+' {
        return false;
    }
    let mut digits = 0;
    let mut to = at + 1;
    loop {
        let group = count(text, to, char::is_ascii_digit);
        digits += group;
        if group > 0 && (8..=15).contains(&digits) {
            return true;
        }
        to += group;
        let between = count(text, to, |c| matches!(c, ' ' | '-' | '.' | '(' | ')' | '/'));
        let goes_on = text.get(to + between).is_some_and(char::is_ascii_digit);
        if between > MAX_APART || !goes_on || digits > 15 {
            return false;
        }
        to += between;
    }
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
            // Cards, their groups set apart in other ways.
            ("4111.1111.1111.1111", "card number"),
            ("4111  1111  1111  1111", "card number"),
            ("4111 - 1111 - 1111 - 1111", "card number"),
            ("4111\n1111\n1111\n1111", "card number"),
            ("4111\r\n1111\t1111 \n 1111", "card number"),
            ("{\"card\":\"4111\\n1111\\n1111\\n1111\"}", "card number"),
            ("{\"card\":\"see\\n4111111111111111\"}", "card number"),
            ("3782.822463.10005", "card number"),
            ("4111\u{ad}1111\u{200b}1111\u{2060}1111", "card number"),
            ("4\u{200d}111111111111111\u{feff}", "card number"),
            ("{\"card\":\"4111\\u200b111111111111\"}", "card number"),
            ("٤١١١١١١١١١١١١١١١", "card number"),
            ("۴۱۱۱ ۱۱۱۱ ۱۱۱۱ ۱۱۱۱", "card number"),
            ("४१११११११११११११११", "card number"),
            ("𝟜𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙𝟙", "card number"),
            ("{\"card\":\"\\u0664١١١١١١١١١١١١١١١\"}", "card number"),
            ("４１１１－１１１１－１１１１－１１１１", "card number"),
            ("total 12. 4111 1111 1111 1111", "card number"),
            // E-mail, whatever stands after it and before the at sign.
            ("ann@example.com...", "e-mail address"),
            ("ann@example.com...and more", "e-mail address"),
            ("ann@example.com-", "e-mail address"),
            ("ann@example.com-urgent", "e-mail address"),
            ("ann@mail.example.com.", "e-mail address"),
            ("ann@example.xn--p1ai", "e-mail address"),
            ("ann@xn--e1afmkfd.xn--p1ai.", "e-mail address"),
            ("ann@b\u{fc}cher.example", "e-mail address"),
            ("\"ann smith\"@example.com", "e-mail address"),
            (
                "{\"to\":\"\\\"ann smith\\\"@example.com\"}",
                "e-mail address",
            ),
            ("ann\u{200b}@exam\u{ad}ple.com", "e-mail address"),
            ("ann\u{ff20}example\u{3002}com", "e-mail address"),
            ("ann@example.com1.org", "e-mail address"),
            // Phones, written otherwise or with something after them.
            ("(212)-555-0123", "phone number"),
            ("(212).555.0123", "phone number"),
            ("212-555-0123x45", "phone number"),
            ("(212) 555-0123ext4", "phone number"),
            ("212  555  0123", "phone number"),
            ("+49 30 1234567 or write", "phone number"),
            ("+49301234567abc", "phone number"),
            ("+49 30 1234567 20261131", "phone number"),
            ("+٤٩ ٣٠ ١٢٣٤٥٦٧", "phone number"),
            ("123\u{2010}45\u{2010}6789", "social security number"),
            ("١٢٣-٤٥-٦٧٨٩", "social security number"),
            ("12\u{200b}3-45-6789", "social security number"),
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
            // Fractions, versions and lists are no cards, whatever their digits add up to.
            "0.4111111111111111",
            "{\"x\":-12.4111111111111111}",
            "v1.4111111111111111",
            "4111\n1111\n1111\n1112",
            "4111.1111.1111.1112",
            "4111    1111,1111;1111",
            "41.11.11.11.11.11.11.11",
            "41\n11\n11\n11\n11\n11\n11\n11",
            "٤١١١١١١١١١١١١١١٢",
            "[\"a\",\"@example.com\"]",
            "{\"@example.com\":1}",
            "\"@example.com\"",
            "https://example.com/@ann.example",
            "ann@example",
            "ann@example.c",
            "ann@example..com",
            "ann@1.2.3",
            "ann@example.c0m",
            "212-555-01234",
            "+1234567",
            "+ 1 2 3",
            "1+1=2, 3+4567=4570",
            "C:\\new\\table",
        ];
        for text in table {
            assert_eq!(found(text), Vec::<&str>::new(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_to_its_end(text in ".{0,80}|[0-9 .+()@x\\\\u\n-]{0,80}") {
            kinds_in(&text);
        }

        #[test]
        fn a_card_is_found_whatever_its_groups_are_set_apart_with(
            apart in proptest::collection::vec("\u{ad}?([ .-]{1,3}|\n)\u{200b}?", 3),
        ) {
            let [a, b, c] = &apart[..] else { unreachable!("three were asked for") };
            proptest::prop_assert_eq!(found(&format!("4111{a}1111{b}1111{c}1111")), ["card number"]);
            let near_miss = format!("4111{a}1111{b}1111{c}1112");
            proptest::prop_assert!(!found(&near_miss).contains(&"card number"));
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
