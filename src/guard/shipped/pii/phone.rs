//! Phone numbers.
//!
//! Ten digits in three groups are any row of figures. What makes a phone number of them is a plus with a country's
//! code, or the punctuation of North America and what its numbers begin with.

use super::{begins, count, ends, fits};

/// How many characters may stand between two groups of one number.
const MAX_APART: usize = 3;
/// The digits of an international number, its country's code included (E.164).
const DIGITS: std::ops::RangeInclusive<usize> = 8..=15;
/// How many it has at least where nothing but its length tells it from an amount.
const PLAIN_DIGITS: usize = 10;

pub(super) fn has_phone(text: &[char]) -> bool {
    (0..text.len())
        .any(|at| begins(text, at) && (is_national(text, at) || is_international(text, at)))
}

fn is_national(text: &[char], at: usize) -> bool {
    const PREFIXES: [&str; 8] = ["+1 ", "+1-", "+1.", "+1", "1-", "1 ", "1.", ""];
    const NATIONAL: [&str; 8] = [
        "(ddd) ddd-dddd",
        "(ddd)ddd-dddd",
        "(ddd)-ddd-dddd",
        "(ddd) ddd dddd",
        "(ddd) ddd.dddd",
        "(ddd).ddd.dddd",
        "ddd-ddd-dddd",
        "ddd.ddd.dddd",
    ];
    PREFIXES.iter().any(|prefix| {
        fits(&text[at..], prefix).is_some_and(|skipped| {
            let from = at + skipped;
            NATIONAL.iter().any(|template| {
                fits(&text[from..], template).is_some_and(|length| {
                    let number = &text[from..from + length];
                    let digits: Vec<u32> = number.iter().filter_map(|c| c.to_digit(10)).collect();
                    is_north_american(&digits) && ends_phone(text, from + length)
                })
            })
        })
    })
}

/// Area and exchange begin with 2 to 9, and neither is a service such as 911.
fn is_north_american(digits: &[u32]) -> bool {
    let begins = |code: &[u32]| code[0] >= 2 && code[1..] != [1, 1];
    digits.len() == 10 && begins(&digits[..3]) && begins(&digits[3..6])
}

/// As [`ends`], or with an extension: `x12`, `ext12`.
fn ends_phone(text: &[char], at: usize) -> bool {
    ends(text, at) || matches!(text.get(at), Some('x' | 'X' | 'e' | 'E'))
}

/// A plus and the digits of a country's code and a number, apart or not. What follows them does not matter, and a
/// number that stands beside them hides none.
fn is_international(text: &[char], at: usize) -> bool {
    if text[at] != '+' {
        return false;
    }
    let mut digits = Vec::new();
    let mut groups = Vec::new();
    let mut dots = 0;
    let mut to = at + 1;
    loop {
        let group = count(text, to, char::is_ascii_digit);
        digits.extend(text[to..to + group].iter().filter_map(|c| c.to_digit(10)));
        groups.push(group);
        if group > 0 && is_number(&digits, &groups, dots) {
            return true;
        }
        to += group;
        let between = count(text, to, |c| matches!(c, ' ' | '-' | '.' | '(' | ')' | '/'));
        let goes_on = text.get(to + between).is_some_and(char::is_ascii_digit);
        if between > MAX_APART || !goes_on || digits.len() > *DIGITS.end() {
            return false;
        }
        dots += usize::from(text[to..to + between] == ['.']);
        to += between;
    }
}

/// Whether digits in groups of these sizes, so many of them set apart by a mere dot, are a number that can be called,
/// and no amount.
fn is_number(digits: &[u32], groups: &[usize], dots: usize) -> bool {
    let fraction = groups.len() == 2 && dots == 1;
    if !DIGITS.contains(&digits.len()) || fraction {
        return false;
    }
    match digits {
        [0, ..] => return false,
        [1, national @ ..] => return is_north_american(national),
        [7, national @ ..] if national.len() != 10 => return false,
        _ => {}
    }
    let singles = groups.iter().skip(1).filter(|size| **size == 1).count();
    // `10485760`, or `100 000 000`.
    let amount = groups.iter().skip(1).all(|size| *size == 3);
    let round = digits.ends_with(&[0, 0, 0]);
    singles <= 1 && (!amount || digits.len() >= PLAIN_DIGITS && !round)
}
