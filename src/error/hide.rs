//! Finding secrets in texts (`ERR-4`).
//!
//! # Invariants
//!
//! 1. A secret is found as it is, line by line where it has several, and as `{:?}`, JSON and a URL write
//!    it, once and printed once more.
//! 2. The beginning of one is found where a text may have been cut off: at its end, and before what
//!    commonly follows a cut or closes a quotation.
//! 3. Every place is found before anything is taken out, and places that overlap go as one: of two secrets
//!    that share letters none leaves a rest.

use std::collections::BTreeSet;
use std::fmt;

/// What stands where a secret was.
const HIDDEN: &str = "[secret]";
/// What may stand behind a text that was cut off, or closes a quotation of one.
const CUTS: [&str; 12] = [
    "...", "\u{2026}", "***", " [", "\"", "'", "`", ")", "]", ">", ":", ",",
];
/// A line of a secret, or the beginning of one, is told from other text from this many bytes on.
const TELLING: usize = 8;
/// Of a short secret half is enough, but no less than this.
const LEAST: usize = 4;

/// Takes secrets out of texts.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    forms: Vec<String>,
}

impl Redactor {
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut forms = BTreeSet::new();
        for secret in secrets {
            let lines = secret
                .lines()
                .map(str::trim)
                .filter(|line| line.len() >= TELLING);
            for part in std::iter::once(secret).chain(lines) {
                for form in written(part) {
                    forms.insert(debugged(&form));
                    forms.insert(form);
                }
            }
        }
        forms.remove("");
        Self {
            forms: forms.into_iter().collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    pub(crate) fn finds(&self, text: &str) -> bool {
        self.forms
            .iter()
            .any(|form| text.contains(&**form) || cut_off(text, form).next().is_some())
    }

    /// The text without secrets; `None` when it has none.
    pub(crate) fn hide(&self, text: &str) -> Option<String> {
        if !self.finds(text) {
            return None;
        }
        let mut places: Vec<(usize, usize)> = Vec::new();
        for form in &self.forms {
            let mut from = 0;
            while let Some(at) = text[from..].find(&**form) {
                let start = from + at;
                places.push((start, start + form.len()));
                // The next may begin inside of this one.
                from = start + text[start..].chars().next().map_or(1, char::len_utf8);
            }
            places.extend(cut_off(text, form));
        }
        places.sort_unstable();
        let mut clean = String::with_capacity(text.len());
        let mut end = 0;
        for (start, stop) in places {
            if start >= end {
                clean.push_str(&text[end..start]);
                clean.push_str(HIDDEN);
            }
            end = end.max(stop);
        }
        clean.push_str(&text[end..]);
        Some(clean)
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor")
    }
}

/// Where the beginning of a secret stands as if it had been cut off there.
fn cut_off<'a>(text: &'a str, form: &'a str) -> impl Iterator<Item = (usize, usize)> + use<'a> {
    let least = (form.len() / 2).clamp(LEAST, TELLING);
    let least = (least..form.len()).find(|length| form.is_char_boundary(*length));
    let starts = least.map(|least| text.match_indices(&form[..least]));
    starts
        .into_iter()
        .flatten()
        .filter_map(move |(start, begun)| {
            let shared = text[start..]
                .chars()
                .zip(form.chars())
                .take_while(|(said, secret)| said == secret)
                .map(|(said, _)| said.len_utf8())
                .sum::<usize>();
            let rest = &text[start + shared..];
            let is_cut = rest.is_empty()
                || rest == CUTS[0]
                || begun.len() >= TELLING && CUTS.iter().any(|cut| rest.starts_with(cut));
            is_cut.then_some((start, start + shared))
        })
}

/// The ways in which a text is written into others.
fn written(text: &str) -> [String; 10] {
    let json = json(text, false);
    let url = in_url(text, |byte| format!("%{byte:02X}"));
    [
        // A path keeps its slashes, the form of a query writes blanks as plus signs, and some leave the padding.
        url.replace("%2F", "/"),
        url.replace("%20", "+"),
        url.replace("%3D", "="),
        text.to_owned(),
        debugged(text),
        json.replace('/', "\\/"),
        json,
        self::json(text, true),
        url,
        in_url(text, |byte| format!("%{byte:02x}")),
    ]
}

fn debugged(text: &str) -> String {
    let quoted = format!("{text:?}");
    quoted[1..quoted.len() - 1].to_owned()
}

fn json(text: &str, ascii: bool) -> String {
    let mut written = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => written.extend(['\\', c]),
            '\n' => written.push_str("\\n"),
            '\r' => written.push_str("\\r"),
            '\t' => written.push_str("\\t"),
            c if c.is_ascii_control() || ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    written.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => written.push(c),
        }
    }
    written
}

fn in_url(text: &str, escape: impl Fn(u8) -> String) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            byte => escape(byte),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(secrets: &[&str], text: &str) -> String {
        let redactor = Redactor::new(secrets.iter().copied());
        redactor.hide(text).unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn secrets_that_share_letters_leave_no_rest() {
        let inside = ["projkey", "projkey-live-999888777"];
        assert_eq!(
            hidden(&inside, "a projkey-live-999888777 b projkey c"),
            "a [secret] b [secret] c"
        );
        let inner = ["tail777", "head-tail777-xyz99"];
        assert_eq!(hidden(&inner, "(head-tail777-xyz99)"), "([secret])");
        let overlap = ["aaaabbbb", "bbbbcccc"];
        assert_eq!(hidden(&overlap, "<aaaabbbbcccc>"), "<[secret]>");
        assert_eq!(hidden(&["abab"], "xabababx"), "x[secret]x");
    }

    #[test]
    fn a_secret_is_found_as_others_write_it() {
        let key = "a\"b\\c\nd/é-\u{1F511}-secret";
        let json = serde_json_like(key);
        for text in [
            format!("{key:?}"),
            format!("{:?}", format!("{key:?}")),
            json.clone(),
            format!("{json:?}"),
            "a%22b%5cc%0ad%2f%c3%a9-%f0%9f%94%91-secret".to_owned(),
            "a%22b%5Cc%0Ad%2F%C3%A9-%F0%9F%94%91-secret".to_owned(),
            "a\\\"b\\\\c\\nd/\\u00e9-\\ud83d\\udd11-secret".to_owned(),
        ] {
            let clean = hidden(&[key], &text);
            assert!(clean.contains(HIDDEN), "{text}: {clean}");
            assert!(
                !clean.contains("secret\"") && !clean.ends_with("-secret"),
                "{clean}"
            );
        }
        let lines = "-----BEGIN-----\nline2-ghijkl\nend";
        assert_eq!(hidden(&[lines], "has line2-ghijkl."), "has [secret].");
    }

    fn serde_json_like(text: &str) -> String {
        format!("\"{}\"", json(text, false))
    }

    #[test]
    fn the_beginning_of_a_secret_goes_where_a_text_was_cut_off() {
        let key = ["sk-live-0123456789"];
        for (text, clean) in [
            ("bad key sk-live-0123", "bad key [secret]"),
            ("bad key sk-live-...", "bad key [secret]..."),
            ("bad key sk-live-012\u{2026}", "bad key [secret]\u{2026}"),
            ("the key \"sk-live-012\" is", "the key \"[secret]\" is"),
            ("at sk-live-0: refused", "at [secret]: refused"),
            (
                "bad key sk-live-01 [truncated]",
                "bad key [secret] [truncated]",
            ),
            ("bad key sk-live-0123 here", "bad key sk-live-0123 here"),
            ("a risk", "a risk"),
        ] {
            assert_eq!(hidden(&key, text), clean);
        }
        assert_eq!(hidden(&["ké-ké-ké-ké"], "x ké-ké"), "x [secret]");
    }
}
