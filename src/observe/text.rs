//! Text of others on the way to a log or a terminal.
//!
//! What jobs and models say may hold line breaks that forge a line of the log, and escape sequences
//! that a terminal obeys.

use std::borrow::Cow;

/// In one line: what controls a terminal or breaks a line is spelt out.
pub(super) fn one_line(text: &str) -> Cow<'_, str> {
    spelt_out(text, |_| false)
}

/// In as many lines as it has: what controls a terminal is spelt out, line breaks and tabs are kept.
pub(super) fn lines(text: &str) -> Cow<'_, str> {
    spelt_out(text, |c| matches!(c, '\n' | '\t'))
}

fn spelt_out(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_plain = |c: char| !c.is_control() || is_kept(c);
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut spelt = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_plain(c) {
            spelt.push(c);
        } else {
            spelt.extend(c.escape_default());
        }
    }
    Cow::Owned(spelt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelt_out() {
        assert_eq!(one_line("häuser"), "häuser");
        assert_eq!(one_line("a\nb\tc"), "a\\nb\\tc");
        assert_eq!(lines("a\nb\tc\u{1b}[2J"), "a\nb\tc\\u{1b}[2J");
        assert_eq!(lines("a\r\n"), "a\\r\n");
    }
}
