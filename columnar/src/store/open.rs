//! Opening a store by its URL.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};

use super::location::{Location, Place};
use super::{ColdStore, StoreConfig, StoreError, UnusableStore};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: &str = "5 seconds";
/// How long a request may take with all that it carries: a part of 8 MiB passes within it at 1.1 Mbit/s.
const REQUEST_TIMEOUT: &str = "60 seconds";
/// A request is tried again by the client for a short while only, at 0.2, 0.4 ... s: what lasts longer is for maintenance to sit out.
const RETRIES: usize = 4;

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: RETRIES,
        retry_timeout: Duration::from_secs(60),
    }
}

impl ColdStore {
    /// Opens the store that `config` names, as one that other servers may reach. Nothing is asked of it yet.
    ///
    /// # Errors
    /// [`StoreError::Location`], [`StoreError::Folder`]; [`StoreError::Unusable`] when the provider's client cannot be set up.
    pub fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        let location = config.location()?;
        let name: Arc<str> = location.name.as_str().into();
        let client = match &location.place {
            Place::Folder(folder) => {
                return Ok(Self {
                    name,
                    ..Self::in_folder(folder, |store| store)?.shared()
                });
            }
            Place::S3 => s3(config, &location),
            Place::Google => google(config, &location),
            Place::Azure => azure(config, &location),
        };
        let object_store = client.map_err(|source| {
            StoreError::Unusable(Box::new(UnusableStore {
                store: location.name.clone(),
                problem: "cannot be opened",
                remedy: "check `cold.store` and the variables of its provider",
                source: Some(source),
            }))
        })?;
        Ok(Self {
            name,
            ..Self::remote(object_store).shared()
        })
    }
}

/// The provider's variables by the names that its client gives them, ours before them so that theirs win.
fn options<'a, K: FromStr>(
    config: &'a StoreConfig,
    provider: &'a str,
) -> impl Iterator<Item = (K, &'a str)> {
    let variables = config.variables.iter();
    variables
        .filter(move |(name, _)| name.starts_with(provider))
        .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.as_str())))
}

fn s3(config: &StoreConfig, location: &Location) -> object_store::Result<Arc<dyn ObjectStore>> {
    let client = AmazonS3ConfigKey::Client;
    let mut builder = AmazonS3Builder::new()
        .with_retry(retries())
        .with_config(client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    for (key, value) in options::<AmazonS3ConfigKey>(config, "AWS_") {
        builder = builder.with_config(key, value);
    }
    if !config.endpoint.is_empty() {
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, &config.endpoint);
    }
    if !config.region.is_empty() {
        builder = builder.with_region(&config.region);
    }
    if config.allows_http() {
        builder = builder.with_allow_http(true);
    }
    let store = builder.with_url(&location.bucket).build()?;
    Ok(below(store, &location.prefix))
}

fn google(config: &StoreConfig, location: &Location) -> object_store::Result<Arc<dyn ObjectStore>> {
    let client = GoogleConfigKey::Client;
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_retry(retries())
        .with_config(client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    for (key, value) in options::<GoogleConfigKey>(config, "GOOGLE_") {
        builder = builder.with_config(key, value);
    }
    let store = builder.with_url(&location.bucket).build()?;
    Ok(below(store, &location.prefix))
}

fn azure(config: &StoreConfig, location: &Location) -> object_store::Result<Arc<dyn ObjectStore>> {
    let client = AzureConfigKey::Client;
    let mut builder = MicrosoftAzureBuilder::new()
        .with_retry(retries())
        .with_config(client(ClientConfigKey::ConnectTimeout), CONNECT_TIMEOUT)
        .with_config(client(ClientConfigKey::Timeout), REQUEST_TIMEOUT);
    for (key, value) in options::<AzureConfigKey>(config, "AZURE_") {
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = config.variable("IDENTITY_ENDPOINT") {
        builder = builder.with_msi_endpoint(endpoint);
    }
    if !config.endpoint.is_empty() {
        builder = builder.with_endpoint(config.endpoint.clone());
    }
    if config.allows_http() {
        builder = builder.with_allow_http(true);
    }
    let store = builder.with_url(&location.bucket).build()?;
    Ok(below(store, &location.prefix))
}

fn below<T: ObjectStore>(store: T, prefix: &Path) -> Arc<dyn ObjectStore> {
    if prefix.as_ref().is_empty() {
        Arc::new(store)
    } else {
        Arc::new(PrefixStore::new(store, prefix.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> StoreConfig {
        StoreConfig {
            url: url.to_owned(),
            variables: [
                ("AWS_ACCESS_KEY_ID", "key"),
                ("AWS_SECRET_ACCESS_KEY", "hunter2"),
                ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
                ("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg=="),
                ("GOOGLE_SKIP_SIGNATURE", "true"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
            ..StoreConfig::default()
        }
    }

    #[test]
    fn each_kind_of_store_opens_by_its_url_and_shows_no_secret() {
        for url in ["s3://bucket/a/b", "gs://bucket/a", "az://container/a"] {
            let store = ColdStore::open(&config(url)).unwrap();
            assert_eq!(store.name(), url);
            assert!(store.is_shared() && store.root().is_none());
            assert!(!format!("{store:?}").contains("hunter2"));
        }
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}", folder.path().display());
        let store = ColdStore::open(&config(&url)).unwrap();
        assert!(store.is_shared() && store.root().is_some());
    }
}
