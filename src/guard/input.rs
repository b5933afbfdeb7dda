//! What is judged: what a job was asked to do, and what it answers (`GRD-2`).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::scope::Scope;
use crate::error::JobError;

/// What a job was asked to do, for guards and scopes to judge.
///
/// A job answers it once, at its submission, and should work from the very value that it answers:
/// then nothing changes between judgment and use.
///
/// ```
/// use nucleo_runtime::guard::{JobInput, Scope, TenantScope};
/// use std::sync::Arc;
///
/// struct OrderQuery { tenant: String, number: u32 }
///
/// impl JobInput for OrderQuery {
///     fn claim(&self) -> Option<Arc<dyn Scope>> {
///         TenantScope::claim(self.tenant.as_str())
///     }
///
///     fn text(&self) -> Option<String> {
///         Some(format!("{{\"tenant\":{:?},\"number\":{}}}", self.tenant, self.number))
///     }
/// }
/// ```
pub trait JobInput: Any + Send + Sync {
    /// The scope that it names; none unless it says otherwise. The flow that it runs in judges it.
    fn claim(&self) -> Option<Arc<dyn Scope>> {
        None
    }

    /// Its text, for the record and for guards that judge texts; none unless it says otherwise.
    /// With the feature `serde`, `json_text(self)` makes it of a type that is `Serialize`.
    fn text(&self) -> Option<String> {
        None
    }
}

impl JobInput for String {
    fn text(&self) -> Option<String> {
        Some(self.clone())
    }
}

/// The JSON of a value, as a text to judge; none when it does not serialise, which fails the guards
/// that would judge it.
#[cfg(feature = "serde")]
pub fn json_text<T: serde::Serialize + ?Sized>(value: &T) -> Option<String> {
    serde_json::to_string(value).ok()
}

/// The text of an output that is one: what [`Job::output_text`](crate::Job::output_text) answers
/// unless a job says otherwise.
pub(crate) fn built_in_text(output: &dyn Any) -> Option<String> {
    output
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| output.downcast_ref::<&'static str>().map(|&s| s.to_owned()))
        .or_else(|| output.downcast_ref::<Arc<str>>().map(|s| (**s).to_owned()))
}

/// What a guard may judge: any sized type, `str` for the text of whatever it is, and `dyn Any` for
/// the value of whatever it is.
pub trait Target: 'static {
    /// The target in a content; `None` when the content is of another type.
    ///
    /// # Errors
    /// When the content should have a text and has none.
    #[doc(hidden)]
    fn find(content: &Content) -> Result<Option<&Self>, JobError>;
}

impl<T: Any> Target for T {
    fn find(content: &Content) -> Result<Option<&Self>, JobError> {
        Ok(content.value().downcast_ref())
    }
}

impl Target for str {
    fn find(content: &Content) -> Result<Option<&Self>, JobError> {
        match &content.text {
            Some(text) => Ok(Some(text)),
            None => Err(JobError::system(
                "guard",
                format!(
                    "a guard judges texts and the {} has none: {}",
                    content.side(),
                    match content.value {
                        Value::Input(_) => "implement `JobInput::text`",
                        Value::Output(_) => "implement `output_text`",
                        Value::Answer(_) => "hand its text to `validate`",
                    }
                ),
            )),
        }
    }
}

impl Target for dyn Any {
    fn find(content: &Content) -> Result<Option<&Self>, JobError> {
        Ok(Some(content.value()))
    }
}

/// A value on its way in or out, with its text.
#[derive(Clone)]
pub struct Content {
    value: Value,
    text: Option<Arc<str>>,
}

#[derive(Clone)]
enum Value {
    Input(Arc<dyn JobInput>),
    Output(Arc<dyn Any + Send + Sync>),
    Answer(Arc<dyn Any + Send + Sync>),
}

impl Content {
    /// Asks the input for its text: call it contained.
    pub(crate) fn input(input: Arc<dyn JobInput>) -> Self {
        let text = input.text().map(Into::into);
        Self {
            value: Value::Input(input),
            text,
        }
    }

    pub(crate) fn output(output: Arc<dyn Any + Send + Sync>, text: Option<String>) -> Self {
        Self {
            value: Value::Output(output),
            text: text.map(Into::into),
        }
    }

    pub(crate) fn answer(answer: Arc<dyn Any + Send + Sync>, text: Option<String>) -> Self {
        Self {
            value: Value::Answer(answer),
            text: text.map(Into::into),
        }
    }

    pub(crate) fn text(&self) -> Option<&Arc<str>> {
        self.text.as_ref()
    }

    fn value(&self) -> &dyn Any {
        match &self.value {
            Value::Input(input) => &**input,
            Value::Output(value) | Value::Answer(value) => &**value,
        }
    }

    fn side(&self) -> &'static str {
        match self.value {
            Value::Input(_) => "input",
            Value::Output(_) => "output",
            Value::Answer(_) => "answer",
        }
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never what it says: it may be what a guard keeps from being read.
        f.debug_struct("Content")
            .field("side", &self.side())
            .finish_non_exhaustive()
    }
}
