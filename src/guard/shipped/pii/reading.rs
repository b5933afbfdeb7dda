//! A text as a reader takes it.

use crate::blank::is_unseen;

/// The text as a reader takes it: escapes of a JSON text read, what cannot be seen left out, digits,
/// dashes and dots of other scripts as the plain ones, and each run of blanks as one. A line's end
/// stays one.
pub(super) fn plain(text: &str) -> Vec<char> {
    let mut out: Vec<char> = Vec::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        let character = match character {
            '\\' => unescape(&mut rest),
            other => other,
        };
        match fold(character) {
            Some(' ') if matches!(out.last(), Some(' ' | '\n')) => {}
            Some('\n') if out.last() == Some(&'\n') => {}
            Some('\n') if out.last() == Some(&' ') => {
                out.pop();
                out.push('\n');
            }
            Some(folded) => out.push(folded),
            None => {}
        }
    }
    out
}

/// What a backslash stands for, with what follows it in a JSON text. One that stands for nothing is
/// itself.
fn unescape(rest: &mut std::str::Chars<'_>) -> char {
    let mut ahead = rest.clone();
    let escaped = match ahead.next() {
        Some('n' | 'r') => '\n',
        Some('t' | 'b' | 'f') => ' ',
        Some(same @ ('"' | '\\' | '/')) => same,
        Some('u') => {
            let digits: String = ahead.by_ref().take(4).collect();
            let code = (digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
                .then(|| u32::from_str_radix(&digits, 16).ok())
                .flatten();
            match code.and_then(char::from_u32) {
                Some(character) => character,
                None => return '\\',
            }
        }
        _ => return '\\',
    };
    *rest = ahead;
    escaped
}

/// The zeros of scripts that count in tens; each one's other digits follow it.
const ZEROS: [u32; 38] = [
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6,
    0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50,
    0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
    0x104a0, 0x11066,
];

/// The plain character that another looks like; none for one that is not seen.
fn fold(character: char) -> Option<char> {
    let code = u32::from(character);
    Some(match character {
        ' '..='~' => character,
        '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}' => '\n',
        unseen if is_unseen(unseen) => return None,
        '\u{2010}'..='\u{2015}' | '\u{2043}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' => '-',
        '\u{3002}' | '\u{ff61}' | '\u{fe52}' | '\u{2024}' => '.',
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(code - 0xfee0)?,
        '\u{fe6b}' => '@',
        // Mathematical digits: five alphabets of ten.
        '\u{1d7ce}'..='\u{1d7ff}' => char::from_digit((code - 0x1d7ce) % 10, 10)?,
        other if other.is_whitespace() => ' ',
        other => ZEROS
            .iter()
            .find_map(|zero| code.checked_sub(*zero).filter(|digit| *digit < 10))
            .and_then(|digit| char::from_digit(digit, 10))
            .unwrap_or(other),
    })
}
