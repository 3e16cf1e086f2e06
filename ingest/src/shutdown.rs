//! One switch that ends a server: thrown once, seen by every task that holds a signal.

use tokio::sync::watch;

/// The side that ends. Dropping it ends too, so that a server never outlives its owner.
#[derive(Debug)]
pub struct ShutdownTrigger {
    sender: watch::Sender<bool>,
}

/// The side that watches. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ShutdownSignal {
    receiver: watch::Receiver<bool>,
}

impl ShutdownTrigger {
    /// A switch that is not yet thrown.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sender: watch::Sender::new(false),
        }
    }

    /// A signal of this switch.
    #[must_use]
    pub fn signal(&self) -> ShutdownSignal {
        ShutdownSignal {
            receiver: self.sender.subscribe(),
        }
    }

    /// Throws the switch. Doing it again changes nothing.
    pub fn trigger(&self) {
        self.sender.send_replace(true);
    }
}

impl Default for ShutdownTrigger {
    fn default() -> Self {
        Self::new()
    }
}

impl ShutdownSignal {
    /// Returns once the switch is thrown or its trigger is gone. Safe to cancel and to call again.
    pub async fn wait(&self) {
        let mut receiver = self.receiver.clone();
        // An error means that the trigger is gone, which ends just the same.
        let _ = receiver.wait_for(|thrown| *thrown).await;
    }

    /// Whether [`Self::wait`] would return at once.
    #[must_use]
    pub fn is_triggered(&self) -> bool {
        *self.receiver.borrow() || self.receiver.has_changed().is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_signal_sees_the_trigger_and_late_ones_too() {
        let trigger = ShutdownTrigger::new();
        let early = trigger.signal();
        assert!(!early.is_triggered());
        trigger.trigger();
        early.wait().await;
        assert!(early.is_triggered());
        trigger.signal().wait().await;
    }

    #[tokio::test]
    async fn dropped_trigger_ends_too() {
        let signal = ShutdownTrigger::new().signal();
        signal.wait().await;
        assert!(signal.is_triggered());
    }
}
