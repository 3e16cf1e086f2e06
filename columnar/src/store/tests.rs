use super::*;
use object_store::memory::InMemory;

#[tokio::test]
async fn put_new_creates_once_and_never_replaces() {
    let folder = tempfile::tempdir().unwrap();
    for store in [
        ColdStore::local(folder.path()).unwrap(),
        ColdStore::remote(Arc::new(InMemory::new())),
    ] {
        let path = Path::from("a/b/1.json");
        store
            .put_new(&path, Bytes::from_static(b"one"))
            .await
            .unwrap();
        let again = store.put_new(&path, Bytes::from_static(b"two")).await;
        assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
        assert_eq!(store.get(&path).await.unwrap(), "one");
        assert_eq!(
            store.list(&Path::from("a")).await.unwrap(),
            [path],
            "nothing else is left"
        );
    }
}

#[tokio::test]
async fn only_one_of_many_concurrent_creators_wins() {
    let folder = tempfile::tempdir().unwrap();
    let store = ColdStore::local(folder.path()).unwrap();
    let path = Path::from("manifest/1.json");
    let tries = (0..16).map(|n| store.put_new(&path, Bytes::from(n.to_string())));
    let won = futures::future::join_all(tries)
        .await
        .into_iter()
        .filter(Result::is_ok)
        .count();
    assert_eq!(won, 1);
}

#[tokio::test]
async fn leftovers_of_a_stopped_upload_are_removed_at_open_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("t/1");
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::write(inner.join("x.parquet#1"), b"part").unwrap();
    std::fs::write(inner.join("x.parquet"), b"whole").unwrap();
    std::fs::write(inner.join("notes#1"), b"mine").unwrap();
    drop(ColdStore::local(folder.path()).unwrap());
    let mut names: Vec<_> = std::fs::read_dir(&inner)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["notes#1", "x.parquet"]);
}

#[tokio::test]
async fn a_sync_that_could_not_even_open_the_file_is_not_a_failed_sync() {
    let folder = tempfile::tempdir().unwrap();
    let store = ColdStore::local(folder.path()).unwrap();
    let failed = store.sync(&Path::from("t/1/0/gone.parquet")).await;
    assert!(matches!(failed, Err(StoreError::Open { .. })), "{failed:?}");
}

#[tokio::test]
async fn deleting_what_is_not_there_is_fine_and_empty_folders_go() {
    let folder = tempfile::tempdir().unwrap();
    let store = ColdStore::local(folder.path()).unwrap();
    let path = Path::from("t/1/0/a.parquet");
    store
        .put_durable(&path, Bytes::from_static(b"x"))
        .await
        .unwrap();
    store.delete(&path).await.unwrap();
    store.delete(&path).await.unwrap();
    store.delete_durable(&path).await.unwrap();
    store.remove_empty_folders(&Path::from("t/1")).await;
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
