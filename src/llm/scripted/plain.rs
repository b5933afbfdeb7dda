//! The scripted model for embeddings and decisions.

use super::{Outcome, ScriptedClient};
use crate::error::JobError;
use crate::llm::client::CallOptions;
use crate::llm::conversation::Conversation;
use crate::llm::decision::{DecisionClient, DecisionResponse};
use crate::llm::embeddings::{EmbeddingsClient, EmbeddingsPurpose, EmbeddingsResponse};
use crate::llm::response::Usage;
use crate::llm::template;
use crate::models::{ModelSpec, estimate_tokens};

/// How long a scripted vector is.
const DIMENSIONS: usize = 64;

impl ScriptedClient {
    /// Takes a step for a call that has no conversation of its own; a step that fails fails it.
    fn plain_step(&self, model: &ModelSpec, said: &str) -> Result<Option<String>, JobError> {
        let conversation = Conversation::new().user(said);
        let step = self.begin(model, &conversation, &CallOptions::new(u32::MAX));
        self.pass(step.latency.unwrap_or(self.latency))?;
        match step.outcome {
            Outcome::Fail(failure) => Err(failure.on(model)),
            Outcome::Reply(text) => Ok(Some(text)),
            Outcome::Response(response) => Ok(Some(response.text().to_owned())),
            Outcome::Truncated => Ok(None),
        }
    }
}

impl EmbeddingsClient for ScriptedClient {
    /// Vectors computed from the words, so that texts with words in common are close. What a step
    /// replies is not looked at; one that fails fails the call.
    fn embed(
        &self,
        model: &ModelSpec,
        texts: &[&str],
        _: EmbeddingsPurpose,
    ) -> Result<EmbeddingsResponse, JobError> {
        self.plain_step(model, &texts.join("\n"))?;
        let tokens = texts
            .iter()
            .map(|text| u64::from(estimate_tokens(text)))
            .sum();
        let vectors = texts.iter().map(|text| vector(text)).collect();
        Ok(EmbeddingsResponse::new(vectors, Usage::new(tokens, 0)))
    }
}

impl DecisionClient for ScriptedClient {
    /// The choice whose text the step replies, in any case. A reply that is none of them cannot be
    /// read.
    fn decide(
        &self,
        model: &ModelSpec,
        question: &str,
        choices: &[&str],
    ) -> Result<DecisionResponse, JobError> {
        let said = self.plain_step(model, question)?.unwrap_or_default();
        let choice = choices
            .iter()
            .position(|choice| choice.to_lowercase() == said.trim().to_lowercase())
            .ok_or_else(|| template::unreadable(model, &said))?;
        let usage = Usage::new(estimate_tokens(question).into(), 0);
        Ok(DecisionResponse::new(choice, usage))
    }
}

/// Counts words in places that their letters choose, at length one.
fn vector(text: &str) -> Vec<f32> {
    let mut counts = vec![0.0_f32; DIMENSIONS];
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        if !word.is_empty() {
            counts[place(&word.to_lowercase())] += 1.0;
        }
    }
    let length = counts.iter().map(|count| count * count).sum::<f32>().sqrt();
    if length > 0.0 {
        for count in &mut counts {
            *count /= length;
        }
    }
    counts
}

/// FNV-1a: the same on every machine and in every run, which the standard library's hash is not.
fn place(word: &str) -> usize {
    let hash = word.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash % DIMENSIONS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::Step;
    use crate::models::ModelBound;
    use std::num::NonZeroU32;

    fn model() -> ModelSpec {
        ModelSpec::new("m", "p", ModelBound::Concurrency(NonZeroU32::MIN)).unwrap()
    }

    #[test]
    fn texts_with_words_in_common_are_close_and_vectors_are_the_same_every_time() {
        let client = ScriptedClient::from_fn(|_| "");
        let texts = ["the tide turns", "The tide comes", "bread and butter"];
        let embed = || {
            client
                .embed(&model(), &texts, EmbeddingsPurpose::Document)
                .unwrap()
        };
        let first = embed();
        assert_eq!(first, embed());
        let close = |a: usize, b: usize| -> f32 {
            let pairs = first.vectors[a].iter().zip(&first.vectors[b]);
            pairs.map(|(a, b)| a * b).sum()
        };
        assert!(close(0, 1) > close(0, 2));
        assert_eq!(first.usage, Usage::new(4 + 4 + 4, 0));
    }

    #[test]
    fn a_decision_is_the_choice_that_the_script_names() {
        let client = ScriptedClient::from_steps([Step::reply(" YES "), Step::reply("perhaps")]);
        let decide = || client.decide(&model(), "is it?", &["no", "yes"]);
        assert_eq!(decide().unwrap().choice, 1);
        assert!(decide().unwrap_err().to_string().contains("perhaps"));
    }
}
