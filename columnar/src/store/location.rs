//! Where a store is, as settings say it: a URL, and how to reach it.
//!
//! Secrets are no settings. They come with the variables that the provider's own tools read, or from the machine's role, so that
//! no file, listing or log of ours can show one. A URL that carries one is refused without being repeated.

use std::fmt;
use std::path::PathBuf;

use url::Url;

/// How to reach an object store.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreConfig {
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `file:///FOLDER`.
    pub url: String,
    /// Another address of the service than the provider's, `https://HOST:PORT`; empty for the provider's.
    pub endpoint: String,
    /// The region of the bucket; empty for what `AWS_REGION` says. Only `s3` has one.
    pub region: String,
    /// Whether an endpoint without TLS may be used.
    pub allow_http: bool,
    /// Variables of the process. Those of the provider (`AWS_*`, `GOOGLE_*`, `AZURE_*`) are read, credentials among them.
    pub variables: Vec<(String, String)>,
}

/// Leaves the variables out: there are secrets among them.
impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("url", &self.url)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("allow_http", &self.allow_http)
            .finish_non_exhaustive()
    }
}

/// Why settings name no store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LocationError {
    /// It is no URL, or none of a store.
    #[error(
        "`{url}` is no store: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
    )]
    Unknown {
        /// As given.
        url: String,
    },
    /// It has credentials or a query in it, which is where secrets are.
    #[error(
        "the {which} must not hold credentials or a query (it is not shown here): put them into the provider's variables, \
         such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    Secret {
        /// The URL of the store, or its endpoint.
        which: &'static str,
    },
    /// The endpoint is no address.
    #[error("the endpoint `{endpoint}` is no address: write https://HOST:PORT")]
    Endpoint {
        /// As given.
        endpoint: String,
    },
    /// The endpoint would be spoken to without TLS.
    #[error(
        "the endpoint `{endpoint}` is without TLS: write https://, or allow it with `cold.store_allow_http = true`"
    )]
    PlainHttp {
        /// As given.
        endpoint: String,
    },
}

/// A provider of stores, or a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    S3,
    Google,
    Azure,
    Folder(PathBuf),
}

/// What a URL says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) place: Place,
    /// The bucket's URL, without the prefix.
    pub(super) bucket: String,
    pub(super) prefix: object_store::path::Path,
    /// The whole as it may be shown.
    pub(super) name: String,
}

impl StoreConfig {
    /// Checks all that can be checked without asking the store.
    ///
    /// # Errors
    /// [`LocationError`].
    pub fn validate(&self) -> Result<(), LocationError> {
        self.location().map(drop)
    }

    pub(super) fn location(&self) -> Result<Location, LocationError> {
        // A name and password before an `@`, or a query, would otherwise be repeated by the error that refuses the rest.
        let is_suspect = self.url.contains(['?', '#']) || holds_password(&self.url);
        if is_suspect {
            return Err(LocationError::Secret {
                which: "URL of the store",
            });
        }
        let unknown = || LocationError::Unknown {
            url: self.url.clone(),
        };
        let url = Url::parse(&self.url).map_err(|_| unknown())?;
        let place = match (url.scheme(), url.host_str()) {
            ("s3", Some(_)) => Place::S3,
            ("gs", Some(_)) => Place::Google,
            ("az", Some(_)) => Place::Azure,
            ("file", None) => Place::Folder(url.to_file_path().map_err(|()| unknown())?),
            _ => return Err(unknown()),
        };
        if !url.username().is_empty() && place != Place::Azure {
            return Err(LocationError::Secret {
                which: "URL of the store",
            });
        }
        let prefix = object_store::path::Path::from_url_path(url.path()).map_err(|_| unknown())?;
        if matches!(place, Place::Folder(_)) && prefix.as_ref().is_empty() {
            return Err(unknown());
        }
        self.check_endpoint(&place)?;
        let bucket = url[..url::Position::BeforePath].to_owned();
        let name = if prefix.as_ref().is_empty() {
            bucket.clone()
        } else {
            format!("{bucket}/{prefix}")
        };
        Ok(Location {
            place,
            bucket,
            prefix,
            name,
        })
    }

    fn check_endpoint(&self, place: &Place) -> Result<(), LocationError> {
        if self.endpoint.contains(['?', '#', '@']) {
            return Err(LocationError::Secret { which: "endpoint" });
        }
        let variable = match place {
            Place::S3 => ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].as_slice(),
            Place::Azure => ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"].as_slice(),
            Place::Google | Place::Folder(_) => [].as_slice(),
        };
        let from_variable = variable.iter().find_map(|name| self.variable(name));
        let endpoint = match self.endpoint.as_str() {
            "" => from_variable.unwrap_or_default(),
            endpoint => endpoint,
        };
        if endpoint.is_empty() {
            return Ok(());
        }
        let bad = || LocationError::Endpoint {
            endpoint: endpoint.to_owned(),
        };
        let url = Url::parse(endpoint).map_err(|_| bad())?;
        match url.scheme() {
            "https" => Ok(()),
            "http" if self.allows_http() => Ok(()),
            "http" => Err(LocationError::PlainHttp {
                endpoint: endpoint.to_owned(),
            }),
            _ => Err(bad()),
        }
    }

    /// Whether settings or the provider's variables allow an endpoint without TLS.
    pub(super) fn allows_http(&self) -> bool {
        let says_so = |name| {
            self.variable(name)
                .is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
        };
        self.allow_http || says_so("AWS_ALLOW_HTTP") || says_so("AZURE_ALLOW_HTTP")
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().find(|(found, _)| found == name);
        found
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }
}

/// Whether a URL has a password before its host, be it a valid one or not.
fn holds_password(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    authority
        .rsplit_once('@')
        .is_some_and(|(user, _)| user.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(url: &str) -> Result<Location, LocationError> {
        StoreConfig {
            url: url.to_owned(),
            ..StoreConfig::default()
        }
        .location()
    }

    #[test]
    fn buckets_prefixes_and_folders_are_read_and_shown() {
        let s3 = location("s3://bucket/a/b/").unwrap();
        assert_eq!(s3.place, Place::S3);
        assert_eq!(s3.bucket, "s3://bucket");
        assert_eq!(s3.prefix.as_ref(), "a/b");
        assert_eq!(s3.name, "s3://bucket/a/b");
        assert_eq!(location("gs://bucket").unwrap().name, "gs://bucket");
        let azure = location("az://container@account/a").unwrap();
        assert_eq!(azure.place, Place::Azure);
        let folder = location("file:///srv/cold").unwrap();
        assert_eq!(folder.place, Place::Folder("/srv/cold".into()));
    }

    #[test]
    fn what_is_no_store_is_refused_with_what_to_write() {
        for url in [
            "",
            "bucket",
            "/srv/cold",
            "http://host/x",
            "s3:///x",
            "file:///",
            "ftp://x/y",
        ] {
            let refused = location(url).unwrap_err().to_string();
            assert!(refused.contains("s3://BUCKET/PREFIX"), "{url}: {refused}");
        }
    }

    #[test]
    fn a_url_with_a_secret_is_refused_and_not_repeated() {
        for url in [
            "s3://key:hunter2@bucket/x",
            "s3://hunter2@bucket",
            "az://container/x?sig=hunter2",
            "nonsense://key:hunter2@bucket/x",
        ] {
            let refused = location(url).unwrap_err();
            assert!(matches!(refused, LocationError::Secret { .. }), "{url}");
            assert!(!refused.to_string().contains("hunter2"));
        }
        let config = StoreConfig {
            url: "s3://bucket".to_owned(),
            endpoint: "https://key:hunter2@host".to_owned(),
            variables: vec![("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2".to_owned())],
            ..StoreConfig::default()
        };
        assert!(
            !config
                .validate()
                .unwrap_err()
                .to_string()
                .contains("hunter2")
        );
        let shown = StoreConfig {
            endpoint: String::new(),
            ..config
        };
        assert!(!format!("{shown:?}").contains("hunter2"));
    }

    #[test]
    fn an_endpoint_without_tls_must_be_allowed() {
        let plain = StoreConfig {
            url: "s3://bucket".to_owned(),
            endpoint: "http://127.0.0.1:9000".to_owned(),
            ..StoreConfig::default()
        };
        assert!(matches!(
            plain.validate(),
            Err(LocationError::PlainHttp { .. })
        ));
        let allowed = StoreConfig {
            allow_http: true,
            ..plain.clone()
        };
        allowed.validate().unwrap();
        let by_variable = StoreConfig {
            endpoint: String::new(),
            variables: vec![("AWS_ENDPOINT_URL".to_owned(), plain.endpoint)],
            ..plain
        };
        assert!(by_variable.validate().is_err());
    }
}
