//! Texts that show nothing.

/// Whether a reader sees nothing of a text: it is empty, or of blanks, controls and characters without a shape.
pub(crate) fn is_blank(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_whitespace() || c.is_control() || is_unseen(c))
}

/// Whether a character has no shape: soft hyphens, joiners, marks of direction, variation selectors, tags.
pub(crate) fn is_unseen(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shows_nothing_is_blank() {
        for text in ["", " \t\n", "\u{200b}", "\u{feff}\u{2060} \u{ad}", "\0"] {
            assert!(is_blank(text), "{text:?}");
        }
        for text in ["a", "\u{200b}a", "-", "é"] {
            assert!(!is_blank(text), "{text:?}");
        }
    }
}
