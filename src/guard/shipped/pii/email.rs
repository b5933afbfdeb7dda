//! E-mail addresses.

use super::count;

pub(super) fn has_email(text: &[char]) -> bool {
    (0..text.len()).any(|at| {
        let sign = match text[at..] {
            ['@', ..] => 1,
            // As an address of the web has it.
            ['%', '4', '0', ..] => 3,
            _ => return false,
        };
        ends_local_part(&text[..at])
            && domain(&text[at + sign..])
                .is_some_and(|length| !is_remote(&text[at + sign + length..]))
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

/// The length of the domain that begins here: labels, the last of letters or in punycode. What follows it does not
/// matter.
fn domain(text: &[char]) -> Option<usize> {
    let mut from = 0;
    let mut labels = 0;
    loop {
        let length = count(text, from, |c| c.is_alphanumeric() || *c == '-');
        let label = &text[from..from + length];
        if labels > 0 && begins_top_level(label) {
            return Some(from + length);
        }
        if length == 0 || text.get(from + length) != Some(&'.') {
            return None;
        }
        labels += 1;
        from += length + 1;
    }
}

/// What a file's or a unit's name ends with, and no mailbox's: `icon@2x.png`, `getty@tty1.service`.
const NO_TOP_LEVELS: [&str; 25] = [
    "automount",
    "css",
    "device",
    "gif",
    "gz",
    "html",
    "jpeg",
    "jpg",
    "js",
    "json",
    "mount",
    "pdf",
    "png",
    "scope",
    "service",
    "slice",
    "socket",
    "svg",
    "swap",
    "tgz",
    "timer",
    "toml",
    "txt",
    "webp",
    "yaml",
];

fn begins_top_level(label: &[char]) -> bool {
    if let ['x' | 'X', 'n' | 'N', '-', '-', rest @ ..] = label {
        return !rest.is_empty();
    }
    let letters = count(label, 0, |c| c.is_alphabetic());
    let name: String = label[..letters]
        .iter()
        .map(char::to_ascii_lowercase)
        .collect();
    letters >= 2
        && label.get(letters).is_none_or(|after| *after == '-')
        && !NO_TOP_LEVELS.contains(&name.as_str())
}

/// Whether a path on the host follows, as in `git@example.com:a/b.git`: then it is a login there.
fn is_remote(after: &[char]) -> bool {
    let [':', path @ ..] = after else {
        return false;
    };
    let goes_on = |c: &char| c.is_alphanumeric() || "/._~-".contains(*c);
    path[..count(path, 0, goes_on)].contains(&'/')
}
