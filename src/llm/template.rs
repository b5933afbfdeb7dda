//! What an answer of a provider means to the runtime, for every provider alike (`LLM-3`).

use crate::error::{ErrorKind, JobError, RetrySignal};
use crate::models::ModelSpec;

/// The model's answer ran into a ceiling of `previous` tokens: to be asked again with twice as
/// much, while the model can write more.
pub(super) fn cut_off(model: &ModelSpec, previous: u32) -> JobError {
    let next = previous.saturating_mul(2).min(model.max_output_tokens);
    if next > previous {
        RetrySignal::truncated(&*model.id, previous, Some(next)).into()
    } else {
        JobError::uncorrectable(format!(
            "the answer of {} was cut off at {previous} tokens, and it has no larger output budget",
            model.id
        ))
    }
}

/// The model refused on grounds of safety.
pub(super) fn refusal(model: &ModelSpec, category: &str, explanation: &str) -> JobError {
    JobError::from_kind(ErrorKind::ProviderRefusal {
        model: model.id.clone(),
        category: category.to_owned(),
        explanation: explanation.to_owned(),
    })
}

/// The provider answered with something that is no answer.
pub(super) fn unreadable(model: &ModelSpec, body: &str) -> JobError {
    const QUOTED_CHARS: usize = 200;
    let quoted: String = body.chars().take(QUOTED_CHARS).collect();
    JobError::external(
        &*model.provider,
        format!("the answer cannot be read: {quoted}"),
    )
}
