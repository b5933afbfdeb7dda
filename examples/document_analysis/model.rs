//! The stand-in for a language model. It really reads the text: what it answers is computed from
//! the words in it, so the agents' work depends on what the model says.

use std::collections::{HashMap, HashSet};

use nucleo_runtime::llm::{Conversation, Role, ScriptedCall};
use nucleo_runtime::models::OutputSize;

/// What the agents ask a model for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The terms to search for.
    Terms,
    /// A summary.
    Summary,
    /// The summary in a line.
    Headline,
}

impl Task {
    const ALL: [Self; 3] = [Self::Terms, Self::Summary, Self::Headline];

    pub(crate) fn instruction(self) -> &'static str {
        match self {
            Self::Terms => "List the terms that this text is about, separated by commas.",
            Self::Summary => {
                "Summarize the first text in three sentences, in the light of the others."
            }
            Self::Headline => "Say in one line what this is about.",
        }
    }

    pub(crate) fn output(self) -> OutputSize {
        match self {
            Self::Terms | Self::Headline => OutputSize::Verdict,
            Self::Summary => OutputSize::Compact,
        }
    }

    /// The conversation that asks for it.
    pub(crate) fn about(self, text: &str) -> Conversation {
        Conversation::new().system(self.instruction()).user(text)
    }
}

const TERMS: usize = 6;
const SUMMARY_SENTENCES: usize = 3;
/// What has no full stop, such as a table, is cut here.
const SENTENCE_CHARS: usize = 300;
const HEADLINE_CHARS: usize = 80;

/// The model's answer.
pub(crate) fn answer(call: &ScriptedCall<'_>) -> String {
    let said = |role| {
        let messages = call.conversation.messages().iter();
        let spoken = messages.filter(move |message| message.role == role);
        spoken.map(|message| &*message.text)
    };
    let instruction = said(Role::System).next().unwrap_or_default();
    let text = said(Role::User).next().unwrap_or_default();
    let weights = frequencies(said(Role::User));
    match Task::ALL
        .into_iter()
        .find(|task| task.instruction() == instruction)
    {
        Some(Task::Terms) => terms(weights).join(", "),
        Some(Task::Summary) => summary(text, &weights, SUMMARY_SENTENCES),
        Some(Task::Headline) => cut(&summary(text, &weights, 1), HEADLINE_CHARS),
        None => format!("I was not told what to do: {instruction}"),
    }
}

/// The words that say what a text is about, most frequent first.
fn terms(frequencies: HashMap<String, usize>) -> Vec<String> {
    let mut counted: Vec<_> = frequencies.into_iter().collect();
    counted.sort_by(|(a, often), (b, seldom)| seldom.cmp(often).then_with(|| a.cmp(b)));
    counted
        .into_iter()
        .take(TERMS)
        .map(|(word, _)| word)
        .collect()
}

/// The sentences whose words are the most frequent, in the order of the text.
fn summary(text: &str, frequencies: &HashMap<String, usize>, sentences: usize) -> String {
    let mut seen = HashSet::new();
    let mut scored: Vec<(usize, &str, usize)> = split_sentences(text)
        .filter(|sentence| seen.insert(*sentence))
        .enumerate()
        .map(|(place, sentence)| (place, sentence, score(sentence, frequencies)))
        .collect();
    scored.sort_by_key(|(place, _, score)| (std::cmp::Reverse(*score), *place));
    scored.truncate(sentences);
    scored.sort_by_key(|(place, ..)| *place);
    let chosen: Vec<_> = scored
        .iter()
        .map(|(_, sentence, _)| cut(sentence, SENTENCE_CHARS))
        .collect();
    chosen.join(" ")
}

/// The mean frequency of a sentence's words, in thousandths: else the longest would always win.
fn score(sentence: &str, frequencies: &HashMap<String, usize>) -> usize {
    let (mut sum, mut count) = (0, 0);
    for word in words(sentence) {
        sum += frequencies.get(&word).copied().unwrap_or_default();
        count += 1;
    }
    // A heading of two words says less than a sentence.
    sum * 1_000 / count.max(4)
}

fn frequencies<'a>(texts: impl Iterator<Item = &'a str>) -> HashMap<String, usize> {
    let mut frequencies = HashMap::new();
    for word in texts.flat_map(words) {
        *frequencies.entry(word).or_default() += 1;
    }
    frequencies
}

/// The words that mean something.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| word.chars().count() > 3)
        .map(str::to_lowercase)
        .filter(|word| !COMMON.contains(&word.as_str()))
}

/// What ends with a full stop, a question mark, an exclamation mark or its line.
fn split_sentences(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| {
        let mut before = ' ';
        line.split_inclusive(move |c: char| {
            let ends = matches!(before, '.' | '!' | '?') && c.is_whitespace();
            before = c;
            ends
        })
        .map(str::trim)
        .filter(|sentence| sentence.contains(' '))
    })
}

fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}...", text[..end].trim_end()),
        None => text.to_owned(),
    }
}

const COMMON: &[&str] = &[
    "about", "after", "also", "because", "been", "before", "being", "between", "both", "cannot",
    "could", "does", "each", "else", "even", "every", "from", "have", "here", "into", "itself",
    "just", "like", "more", "most", "must", "never", "nothing", "once", "only", "other", "over",
    "same", "should", "since", "some", "such", "than", "that", "their", "them", "then", "there",
    "these", "they", "this", "those", "under", "until", "what", "when", "where", "whenever",
    "which", "while", "with", "without", "would", "your",
];
