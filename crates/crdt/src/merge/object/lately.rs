//! Objects that were read lately.
//!
//! Each version that comes to a window is merged with all that are there, on their base. These were read when they came. So each
//! thread that merges keeps the objects that it read last, and reads a version once while its window is written to. What a value
//! means depends on its bytes alone: whether it was kept shows nowhere.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::Object;

/// Most objects that a thread keeps.
const OBJECTS_MAX: usize = 128;

/// How many bytes their values take together, at most. An object takes several times as much.
const BYTES_MAX: usize = 256 << 10;

/// From how many versions on that are merged together what is read of them is kept. Mostly there are two, merged once, and they settle.
/// To keep those as well made that merge 5 % slower: what it takes is in no cache of the processor any more.
const VERSIONS_MIN: usize = 3;

/// The objects that were read last, with their values. These are held, so that no other value can come to lie where they lie.
#[derive(Default)]
struct Lately {
    objects: VecDeque<(Bytes, Arc<Object>)>,
    bytes: usize,
    /// How many values were read.
    #[cfg(test)]
    read: usize,
}

thread_local! {
    static LATELY: RefCell<Lately> = RefCell::default();
}

/// How to read the values of that many versions that are merged together: as [`Object::parse`] does, if this very value was not read lately.
pub(crate) fn reader(versions: usize) -> fn(&Bytes) -> Option<Arc<Object>> {
    match versions {
        VERSIONS_MIN.. => |value| LATELY.with_borrow_mut(|lately| lately.read(value)),
        _ => |value| Object::parse(value).map(Arc::new),
    }
}

/// How many values this thread has read to keep them.
#[cfg(test)]
pub(crate) fn count() -> usize {
    LATELY.with_borrow(|lately| lately.read)
}

impl Lately {
    fn read(&mut self, value: &Bytes) -> Option<Arc<Object>> {
        let is_this = |of: &Bytes| std::ptr::eq::<[u8]>(&**of, &**value);
        if let Some((_, object)) = self.objects.iter().rev().find(|(of, _)| is_this(of)) {
            return Some(Arc::clone(object));
        }
        #[cfg(test)]
        {
            self.read += 1;
        }
        let object = Arc::new(Object::parse(value)?);
        if value.len() > BYTES_MAX {
            return Some(object);
        }
        self.bytes += value.len();
        self.objects.push_back((value.clone(), Arc::clone(&object)));
        while self.bytes > BYTES_MAX || self.objects.len() > OBJECTS_MAX {
            let Some((oldest, _)) = self.objects.pop_front() else { break };
            self.bytes -= oldest.len();
        }
        Some(object)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An object that says this.
    pub(crate) fn value(data: &str) -> Bytes {
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","data":{{"a":"{data}"}}}}"#).into()
    }

    #[test]
    fn a_value_is_read_once_while_it_is_among_the_last() {
        let mut lately = Lately::default();
        let values: Vec<Bytes> = (0..OBJECTS_MAX).map(|n| value(&n.to_string())).collect();
        let first: Vec<_> = values.iter().map(|value| lately.read(value).unwrap()).collect();
        for (value, first) in values.iter().zip(&first) {
            assert!(Arc::ptr_eq(&lately.read(value).unwrap(), first));
            assert_eq!(**first, Object::parse(value).unwrap());
        }
        // The same bytes elsewhere are another value, and take the place of the oldest.
        let copy = Bytes::copy_from_slice(&values[0]);
        let read = lately.read(&copy).unwrap();
        assert!(!Arc::ptr_eq(&read, &first[0]) && read == first[0]);
        assert!(!Arc::ptr_eq(&lately.read(&values[0]).unwrap(), &first[0]));
        assert_eq!(lately.read(&Bytes::from_static(b"no object")), None);
    }

    #[test]
    fn what_is_kept_is_bounded_in_number_and_bytes() {
        let mut lately = Lately::default();
        let kept = |lately: &Lately| lately.objects.iter().map(|(value, _)| value.len()).sum::<usize>();
        for n in 0..4 * OBJECTS_MAX {
            let value = value(&"x".repeat(if n % 7 == 0 { BYTES_MAX / 5 } else { n }));
            lately.read(&value).unwrap();
            assert!(lately.objects.len() <= OBJECTS_MAX && kept(&lately) <= BYTES_MAX && kept(&lately) == lately.bytes);
        }
        assert!(lately.objects.len() > 4);
        let before = lately.objects.len();
        lately.read(&value(&"x".repeat(BYTES_MAX))).unwrap();
        assert_eq!(lately.objects.len(), before, "what is larger than all is not kept");
    }
}
