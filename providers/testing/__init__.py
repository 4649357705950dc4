"""For authors of providers and for tests: the contract suite, and a fake cloud to test against."""

import sys

# Under pytest a failed assertion of the suite shows what it compared.  The fake cloud is used without pytest, too.
if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite(f"{__name__}.contract")
