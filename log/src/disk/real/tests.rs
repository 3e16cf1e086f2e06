use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::*;

const LIMIT: usize = 8;

/// A folder, and a disk that opens few files in it.
fn setup() -> (tempfile::TempDir, RealDisk) {
    let dir = tempfile::tempdir().unwrap();
    (dir, RealDisk::with_crowd(LIMIT, usize::MAX, usize::MAX))
}

/// Descriptors of this process that are of files below a folder; removed files count, the folder itself does not.
fn open_below(dir: &Path) -> usize {
    let below = format!("{}/", dir.display());
    open_paths()
        .iter()
        .filter(|target| target.to_string_lossy().starts_with(&below))
        .count()
}

fn open_paths() -> Vec<PathBuf> {
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .collect()
}

fn content(file: &dyn DiskFile) -> String {
    String::from_utf8(file.read_all().unwrap()).unwrap()
}

fn synced(disk: &RealDisk, path: &Path, bytes: &str) -> Arc<dyn DiskFile> {
    let file = disk.create(path).unwrap();
    file.write_at(bytes.as_bytes(), 0).unwrap();
    file.sync().unwrap();
    file
}

/// Uses so many other files that all clean ones that are not used meanwhile are closed.
fn push_out(disk: &RealDisk, dir: &Path) -> Vec<Arc<dyn DiskFile>> {
    let others: Vec<_> = (0..3 * LIMIT)
        .map(|number| synced(disk, &dir.join(format!("other-{number}")), "x"))
        .collect();
    assert!(open_below(dir) >= LIMIT);
    others
}

/// A handle and what it should read: several may be of one file.
struct Known {
    file: Arc<dyn DiskFile>,
    path: Option<PathBuf>,
    bytes: String,
    is_dirty: bool,
}

struct Model {
    dir: tempfile::TempDir,
    disk: RealDisk,
    files: Vec<Known>,
    state: u64,
}

impl Model {
    fn random(&mut self, below: usize) -> usize {
        // Xorshift: the seed is all there is to it.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state % below as u64).unwrap()
    }

    fn path(&mut self) -> PathBuf {
        let number = self.random(150);
        self.dir.path().join(number.to_string())
    }

    fn lose(&mut self, path: &Path) {
        for file in &mut self.files {
            if file.path.as_deref() == Some(path) {
                file.path = None;
            }
        }
    }

    fn make(&mut self) {
        let path = self.path();
        if self
            .files
            .iter()
            .any(|file| file.path.as_ref() == Some(&path))
        {
            return;
        }
        let file = self.disk.create(&path).unwrap();
        self.files.push(Known {
            file,
            path: Some(path),
            bytes: String::new(),
            is_dirty: false,
        });
    }

    fn step(&mut self, number: usize) {
        if self.files.len() < 100 {
            return self.make();
        }
        let index = self.random(self.files.len());
        match self.random(20) {
            0..5 => {
                let known = &mut self.files[index];
                let position = known.bytes.len() as u64;
                let bytes = format!("{number} ");
                known.file.write_at(bytes.as_bytes(), position).unwrap();
                known.bytes += &bytes;
                known.is_dirty = true;
            }
            5..10 => {
                let known = &mut self.files[index];
                known.file.sync().unwrap();
                known.is_dirty = false;
            }
            10..15 => {
                let known = &self.files[index];
                assert_eq!(content(known.file.as_ref()), known.bytes);
            }
            15..17 => {
                let to = self.path();
                let Some(from) = self.files[index].path.clone() else {
                    return;
                };
                self.disk.rename(&from, &to).unwrap();
                if from != to {
                    self.lose(&to);
                    self.files[index].path = Some(to);
                }
            }
            17 => {
                if let Some(path) = self.files[index].path.clone() {
                    self.disk.remove_file(&path).unwrap();
                    self.lose(&path);
                }
            }
            18 => {
                self.files.swap_remove(index);
            }
            _ if number.is_multiple_of(10) => {
                self.files[index].file.sync_file_system().unwrap();
                for known in &mut self.files {
                    known.is_dirty = false;
                }
            }
            _ => {}
        }
    }

    fn check(&self) {
        let must_be_open = self
            .files
            .iter()
            .filter(|known| known.is_dirty || known.path.is_none())
            .count();
        let open = open_below(self.dir.path());
        assert_eq!(
            open,
            self.disk
                .shared
                .descriptors
                .open_count()
                .load(Ordering::Relaxed)
        );
        assert!(open >= must_be_open, "{open} < {must_be_open}");
        assert!(
            open <= LIMIT + must_be_open,
            "{open} > {LIMIT} + {must_be_open}"
        );
    }
}

#[test]
fn files_read_as_written_whatever_they_are_called_and_few_are_open() {
    for seed in 1..=4 {
        println!("seed {seed}");
        let (dir, disk) = setup();
        let mut model = Model {
            dir,
            disk,
            files: Vec::new(),
            state: 0x9e37_79b9_7f4a_7c15 + seed,
        };
        for number in 0..2000 {
            model.step(number);
            model.check();
        }
        for known in &model.files {
            assert_eq!(content(known.file.as_ref()), known.bytes);
        }
        let mut names: BTreeMap<_, _> = BTreeMap::new();
        for known in &model.files {
            if let Some(path) = &known.path {
                names.insert(path.clone(), known.bytes.clone());
            }
        }
        for (path, bytes) in names {
            assert_eq!(fs::read_to_string(path).unwrap(), bytes);
        }
        model.files.clear();
        assert_eq!(open_below(model.dir.path()), 0);
        assert!(
            model
                .disk
                .shared
                .names
                .begin_removal(Path::new("/"))
                .is_empty()
        );
        assert!(model.disk.shared.descriptors.open_files().is_empty());
    }
}

/// DISK-1.
#[test]
fn a_file_with_writes_that_no_sync_covers_stays_open() {
    let (dir, disk) = setup();
    let dir = dir.path();
    let write = |file: &Arc<dyn DiskFile>, number: usize| match number % 4 {
        0 => file.write_at(b"x", 0),
        1 => file.allocate(4096),
        2 => file.reserve(4096),
        _ => file.set_len(5),
    };
    let dirty: Vec<_> = (0..40)
        .map(|number| {
            let file = disk.create(&dir.join(number.to_string())).unwrap();
            write(&file, number).unwrap();
            file
        })
        .collect();
    assert_eq!(open_below(dir), dirty.len());
    let _others = push_out(&disk, dir);
    for file in &dirty[..20] {
        file.sync().unwrap();
    }
    assert!(
        (20..=20 + LIMIT).contains(&open_below(dir)),
        "{}",
        open_below(dir)
    );
    dirty[39].sync_file_system().unwrap();
    assert_eq!(open_below(dir), LIMIT);
    write(&dirty[0], 0).unwrap();
    let _others = push_out(&disk, dir);
    assert!(open_paths().contains(&dir.join("0")), "it was never closed");
    assert_eq!(dirty[0].len().unwrap(), 1);
}

#[test]
fn a_write_during_a_sync_is_not_covered_by_it() {
    let (dir, disk) = setup();
    let path: Arc<Path> = dir.path().join("a").as_path().into();
    let file_system = disk.shared.file_systems.of(&path).unwrap();
    let file = File::create(&path).unwrap();
    let held = HeldFile::new(file, &path, file_system, &disk.shared.descriptors).unwrap();
    held.note_write();
    let begun = held.file_system().begin_sync();
    held.note_write();
    held.note_sync(begun);
    assert!(!held.is_clean());
    let begun = held.file_system().begin_sync();
    held.note_sync(begun);
    assert!(held.is_clean());
    held.note_write();
    let during = |_: &File| {
        held.note_write();
        Ok(())
    };
    held.file_system().sync(during, || ()).unwrap();
    assert!(!held.is_clean());
    held.file_system().sync(|_| Ok(()), || ()).unwrap();
    assert!(held.is_clean());
}

fn real_file(disk: &RealDisk, path: &Path) -> RealFile {
    let shared = &disk.shared;
    let path: Arc<Path> = path.into();
    let file_system = shared.file_systems.of(&path).unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    let held = HeldFile::new(file, &path, file_system, &shared.descriptors).unwrap();
    shared.names.add(&path, &held);
    shared.descriptors.admit(&held);
    RealFile::new(&held, shared)
}

#[test]
fn after_a_failed_sync_of_the_file_system_only_its_own_sync_cleans_a_file_and_all_users_learn_of_it()
 {
    let (dir, disk) = setup();
    let [dirty, clean, other] =
        ["dirty", "clean", "other"].map(|name| real_file(&disk, &dir.path().join(name)));
    dirty.write_at(b"x", 0).unwrap();
    clean.write_at(b"x", 0).unwrap();
    clean.sync().unwrap();
    let failing = |_: &File| Err(io::Error::other("the disk is broken"));
    assert!(dirty.sync_file_system_by(failing).is_err());
    dirty.sync_file_system().unwrap();
    assert!(!dirty.held.is_clean() && clean.held.is_clean());
    assert!(
        other.sync_file_system().is_err(),
        "it has not heard of the failure yet"
    );
    other.sync_file_system().unwrap();
    real_file(&disk, &dir.path().join("later"))
        .sync_file_system()
        .unwrap();
    dirty.sync().unwrap();
    assert!(dirty.held.is_clean());
    dirty.write_at(b"y", 0).unwrap();
    dirty.sync_file_system().unwrap();
    assert!(dirty.held.is_clean());
}

/// DISK-2.
#[test]
fn a_file_that_lost_its_name_while_it_was_closed_still_reads() {
    let (dir, disk) = setup();
    let dir = dir.path();
    let (folder, deep) = (dir.join("folder"), dir.join("folder/deep"));
    disk.create_dir_all(&deep).unwrap();
    let paths = [
        dir.join("removed"),
        dir.join("replaced"),
        deep.join("below"),
        dir.join("folder.beside"),
    ];
    let files = paths
        .clone()
        .map(|path| synced(&disk, &path, &path.to_string_lossy()));
    let new = synced(&disk, &dir.join("new"), "new");
    let others = push_out(&disk, dir);
    let open = open_paths();
    assert!(
        paths.iter().all(|path| !open.contains(path)),
        "all are closed"
    );
    disk.remove_file(&paths[0]).unwrap();
    disk.rename(&dir.join("new"), &paths[1]).unwrap();
    disk.remove_dir_all(&folder).unwrap();
    // Another file of the name is nobody's business.
    fs::write(&paths[0], "another").unwrap();
    drop(others);
    let _others = push_out(&disk, dir);
    for (path, file) in paths.iter().zip(&files) {
        assert_eq!(content(file.as_ref()), path.to_string_lossy());
    }
    assert_eq!(content(new.as_ref()), "new");
    drop((files, new));
    disk.create_dir_all(&folder).unwrap();
    synced(&disk, &folder.join("later"), "x");
}

#[test]
fn a_file_made_over_another_is_the_same_file() {
    let (dir, disk) = setup();
    let path = dir.path().join("a");
    let old = synced(&disk, &path, "old");
    let _others = push_out(&disk, dir.path());
    let new = synced(&disk, &path, "new and longer");
    assert_eq!(content(old.as_ref()), "new and longer");
    disk.remove_file(&path).unwrap();
    drop(new);
    let _others = push_out(&disk, dir.path());
    assert_eq!(content(old.as_ref()), "new and longer");
}

#[test]
fn a_file_that_cannot_be_opened_again_is_an_error_of_the_call() {
    let (dir, disk) = setup();
    let (path, aside) = (dir.path().join("a"), dir.path().join("aside"));
    let file = synced(&disk, &path, "a");
    let others = push_out(&disk, dir.path());
    fs::rename(&path, &aside).unwrap();
    assert_eq!(file.read_all().unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(file.write_at(b"b", 0).is_err() && file.sync().is_err() && file.descriptor().is_err());
    fs::write(&path, "another's").unwrap();
    assert_eq!(file.read_all().unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(file.write_at(b"b", 0).is_err());
    fs::rename(&aside, &path).unwrap();
    assert_eq!(content(file.as_ref()), "a");
    drop(others);
    assert_eq!(open_below(dir.path()), 1);
}

#[test]
fn a_descriptor_keeps_its_file_open() {
    let (dir, disk) = setup();
    let file = synced(&disk, &dir.path().join("a"), "a");
    let descriptor = file.descriptor().unwrap().unwrap();
    let others = push_out(&disk, dir.path());
    drop((file, others));
    let mut byte = [0];
    rustix::io::pread(&descriptor, &mut byte, 0).unwrap();
    assert_eq!((byte, open_below(dir.path())), (*b"a", 1));
}

#[test]
fn a_crowd_of_dirty_files_is_synced_and_closed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::with_descriptors(LIMIT);
    let files: Vec<_> = (0..100)
        .map(|number| {
            let file = disk.create(&dir.path().join(number.to_string())).unwrap();
            file.write_at(b"x", 0).unwrap();
            assert!(open_below(dir.path()) <= 2 * LIMIT);
            file
        })
        .collect();
    assert!(files.iter().all(|file| content(file.as_ref()) == "x"));
}

#[test]
fn files_are_renamed_and_read_by_many_threads() {
    let (dir, disk) = setup();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let file = synced(&disk, &a, "a");
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (disk, dir) = (&disk, dir.path());
            scope.spawn(move || {
                for round in 0..100 {
                    let path = dir.join(format!("{thread}-{}", round % 20));
                    let other = synced(disk, &path, "other");
                    let _more: Vec<_> = (0..LIMIT).map(|_| disk.open(&path).unwrap()).collect();
                    assert_eq!(content(other.as_ref()), "other");
                    disk.remove_file(&path).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..500 {
                disk.rename(&a, &b).unwrap();
                disk.rename(&b, &a).unwrap();
            }
        });
        for _ in 0..5000 {
            assert_eq!(content(file.as_ref()), "a");
        }
    });
    drop(file);
    assert_eq!(open_below(dir.path()), 0);
}
