//! What a store's first refusals mean to whoever starts a server.

use super::{ColdStore, StoreError, UnusableStore};

/// An error of the first requests to a store, in terms of what is wrong with the settings. Others stay as they are.
pub(crate) fn explained(store: &ColdStore, error: StoreError) -> StoreError {
    let StoreError::Object { source, .. } = error else {
        return error;
    };
    let (problem, remedy) = diagnose(&source);
    StoreError::Unusable(Box::new(UnusableStore {
        store: store.name().to_owned(),
        problem,
        remedy,
        source: Some(source),
    }))
}

fn diagnose(error: &object_store::Error) -> (&'static str, &'static str) {
    use object_store::Error;
    // Of a listing that was refused only the text tells with which status.
    let text = crate::error::Chain(error).to_string();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match error {
        // Where a client without credentials asks for those of the machine's role.
        _ if says(&["169.254.169.254", "metadata.google.internal"]) => (
            "was given no credentials",
            "set the provider's variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (files of the AWS command line are not \
             read), or give the machine a role",
        ),
        Error::NotImplemented { .. } | Error::NotSupported { .. } => {
            ("cannot do what is needed", NEEDS_CONDITIONAL_PUTS)
        }
        _ if matches!(
            error,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
        ) || says(&["403 Forbidden", "401 Unauthorized"]) =>
        {
            (
                "refuses the credentials",
                "check them (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the machine's role), and that they may list, read, \
                 write and delete below the prefix",
            )
        }
        _ if matches!(error, Error::NotFound { .. }) || says(&["404 Not Found"]) => {
            ("is not there", "create the bucket, or correct `cold.store`")
        }
        _ => (
            "cannot be reached, or fails",
            "check `cold.store_endpoint`, `cold.store_region`, the network, and that the service runs; then start again",
        ),
    }
}

/// What to do with a store that replaces objects although it is told not to.
pub(crate) const NEEDS_CONDITIONAL_PUTS: &str = "use a store that honours conditional puts (`If-None-Match: *`), without which two servers could overwrite each other";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    fn shown(source: object_store::Error) -> String {
        let store = ColdStore::remote(Arc::new(InMemory::new()));
        let error = StoreError::Object {
            action: "list",
            path: "@owner".to_owned(),
            source,
        };
        explained(&store, error).to_string()
    }

    #[test]
    fn wrong_credentials_a_wrong_bucket_and_a_dead_service_are_told_apart() {
        let denied = object_store::Error::PermissionDenied {
            path: String::new(),
            source: "403".into(),
        };
        assert!(shown(denied).contains("AWS_SECRET_ACCESS_KEY"));
        let missing = object_store::Error::NotFound {
            path: String::new(),
            source: "404".into(),
        };
        assert!(shown(missing).contains("create the bucket"));
        let generic = |text: &str| object_store::Error::Generic {
            store: "S3",
            source: text.into(),
        };
        let listing = generic("Server returned non-2xx status code: 403 Forbidden");
        assert!(shown(listing).contains("AWS_SECRET_ACCESS_KEY"));
        let listing = generic("Server returned non-2xx status code: 404 Not Found");
        assert!(shown(listing).contains("create the bucket"));
        assert!(shown(generic("connection refused")).contains("service runs"));
        assert!(shown(generic("http://169.254.169.254/latest")).contains("no credentials"));
    }
}
