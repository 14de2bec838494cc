"""What the tests share: servers, fault injection, surgery, strategies."""
