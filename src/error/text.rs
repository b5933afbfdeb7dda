//! Reading foreign errors: what they say, and whether it is about money.

use std::error::Error as StdError;

use super::chain::{links, said};
use crate::unwind::catch;

/// What a failure says, with its deepest cause in brackets where it has one: `request failed
/// [ConnectionRefused: refused]`. A cause is named by its type, as far as its `Debug` tells that.
#[must_use]
pub fn failure_text(error: &(dyn StdError + 'static)) -> String {
    let text = said(error);
    let root = links(error).skip(1).last();
    match root {
        None if text.is_empty() => type_name(error),
        None => text,
        Some(root) => {
            let said = said(root);
            let name = type_name(root);
            let cause = match (name.is_empty(), said.is_empty()) {
                (false, false) => format!("{name}: {said}"),
                (false, true) => name,
                (true, _) => said,
            };
            if text.is_empty() {
                cause
            } else {
                format!("{text} [{cause}]")
            }
        }
    }
}

/// Whether any text in the chain of causes says that an account is out of money. To be asked before
/// whether it says that the rate is too high: a spent quota is often told as a 429 as well.
#[must_use]
pub fn says_out_of_money(error: &(dyn StdError + 'static)) -> bool {
    links(error).any(|error| text_says_out_of_money(&said(error)))
}

pub(crate) fn text_says_out_of_money(text: &str) -> bool {
    const SAYINGS: [&str; 6] = [
        "insufficient_quota",
        "insufficient quota",
        "credit balance is too low",
        "billing_hard_limit",
        "exceeded your current quota",
        "out of money",
    ];
    let text = text.to_lowercase();
    SAYINGS.iter().any(|saying| text.contains(saying))
}

/// A derived `Debug` begins with the type's or the variant's name.
fn type_name(error: &(dyn StdError + 'static)) -> String {
    catch(|| format!("{error:?}"))
        .unwrap_or_default()
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Plain(&'static str);

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct UnknownHost(&'static str);

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Wrapper {
        text: &'static str,
        #[source]
        cause: UnknownHost,
    }

    // case RTY-14
    #[test]
    fn a_failure_is_told_with_its_deepest_cause() {
        let wrap = |text, cause| Wrapper {
            text,
            cause: UnknownHost(cause),
        };
        assert_eq!(failure_text(&Plain("plain")), "plain");
        assert_eq!(
            failure_text(&wrap("wrapper", "api.example")),
            "wrapper [UnknownHost: api.example]"
        );
        assert_eq!(failure_text(&wrap("wrapper", "")), "wrapper [UnknownHost]");
        assert_eq!(failure_text(&Plain("")), "Plain");
    }

    // case RTY-22
    #[test]
    fn money_is_looked_for_in_the_whole_chain_and_in_any_case() {
        let wrap = |cause| Wrapper {
            text: "HTTP 429",
            cause: UnknownHost(cause),
        };
        assert!(says_out_of_money(&wrap("code: Insufficient_Quota")));
        assert!(!says_out_of_money(&wrap("rate limit")));
        assert!(!says_out_of_money(&Plain("")));
    }
}
