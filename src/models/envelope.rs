//! Which models may be used at all (`PICK-6`), sealed once before the start.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::spec::ModelSpec;

/// The deployment's word on which models may be sent anything. Asked of every model before it is
/// used, pinned or picked.
pub trait ComplianceEnvelope: fmt::Debug + Send + Sync + 'static {
    /// Whether the model may be used.
    ///
    /// # Errors
    /// Why not, in words for an operator.
    fn judge(&self, model: &ModelSpec) -> Result<(), String>;
}

/// An envelope of lists. It allows every provider that does not use what it is sent for purposes of
/// its own.
///
/// ```
/// use nucleo_runtime::models::DefaultComplianceEnvelope;
///
/// let envelope = DefaultComplianceEnvelope::new()
///     .allow_providers(["acme", "own"])
///     .deny_models(["acme-preview"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct DefaultComplianceEnvelope {
    allowed: Option<BTreeSet<String>>,
    denied: BTreeSet<String>,
    denied_models: BTreeSet<String>,
    data_sharing: bool,
}

impl DefaultComplianceEnvelope {
    /// One that allows every provider that does not share data.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows these provider keys and no others, besides those allowed before. All unless set.
    #[must_use]
    pub fn allow_providers<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        let allowed = self.allowed.get_or_insert_default();
        allowed.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Denies these provider keys, allowed or not.
    #[must_use]
    pub fn deny_providers<K: Into<String>>(mut self, keys: impl IntoIterator<Item = K>) -> Self {
        self.denied.extend(keys.into_iter().map(Into::into));
        self
    }

    /// Denies these models, by their ids or identities.
    #[must_use]
    pub fn deny_models<K: Into<String>>(mut self, ids: impl IntoIterator<Item = K>) -> Self {
        self.denied_models.extend(ids.into_iter().map(Into::into));
        self
    }

    /// Whether providers may use what they are sent for purposes of their own. They may not unless
    /// set.
    #[must_use]
    pub fn data_sharing(mut self, allowed: bool) -> Self {
        self.data_sharing = allowed;
        self
    }
}

impl ComplianceEnvelope for DefaultComplianceEnvelope {
    fn judge(&self, model: &ModelSpec) -> Result<(), String> {
        let provider = &model.provider;
        if self.denied.contains(provider) {
            return Err(format!("the provider {provider} is denied"));
        }
        if let Some(allowed) = &self.allowed
            && !allowed.contains(provider)
        {
            return Err(format!("the provider {provider} is not allowed"));
        }
        if self.denied_models.contains(&model.id) || self.denied_models.contains(&model.identity) {
            return Err(format!("the model {} is denied", model.id));
        }
        if model.shares_data && !self.data_sharing {
            return Err(format!(
                "the provider {provider} uses what it is sent for purposes of its own"
            ));
        }
        Ok(())
    }
}

impl<E: ComplianceEnvelope + ?Sized> ComplianceEnvelope for Arc<E> {
    fn judge(&self, model: &ModelSpec) -> Result<(), String> {
        (**self).judge(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelBound;
    use std::num::NonZeroU32;

    fn model(id: &str, provider: &str) -> ModelSpec {
        ModelSpec::new(id, provider, ModelBound::Concurrency(NonZeroU32::MIN)).unwrap()
    }

    #[test]
    fn lists_allow_and_deny_and_denial_wins() {
        let envelope = DefaultComplianceEnvelope::new()
            .allow_providers(["acme", "own"])
            .deny_providers(["own"])
            .deny_models(["acme-2", "weights"]);
        assert!(envelope.judge(&model("acme-1", "acme")).is_ok());
        for refused in [
            model("acme-2", "acme"),
            model("acme-3", "acme").identity("weights"),
            model("own-1", "own"),
            model("else-1", "else"),
        ] {
            assert!(envelope.judge(&refused).is_err(), "{}", refused.id);
        }
    }

    #[test]
    fn data_is_not_shared_unless_that_is_said() {
        let sharing = model("m", "p").shares_data(true);
        assert!(DefaultComplianceEnvelope::new().judge(&sharing).is_err());
        let open = DefaultComplianceEnvelope::new().data_sharing(true);
        assert!(open.judge(&sharing).is_ok());
    }
}
