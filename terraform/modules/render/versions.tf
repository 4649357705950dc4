terraform {
  # 1.9: validations may look at other variables.
  required_version = ">= 1.9, < 2.0"
}
