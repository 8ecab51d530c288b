"""`flashrnn.tests.utils` hands on the helpers of flashrnn-testing."""
